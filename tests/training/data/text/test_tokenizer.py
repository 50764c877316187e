import json

import numpy as np
import pytest
from keras_hub.tokenizers import WordPieceTokenizer

from deq_keras.tokenizers import CharacterTokenizer
from training.data import text
from training.data.text import WordTokenizer
from training.errors import InputError

TRAIN = " b a <unk> \n\n c b A \n"


def load(level, content=TRAIN, directory=None, *further, **arguments):
    """Returns a tokenizer, and keeps its vocabulary in a folder, if there is one."""
    tokenizer, keep = text.find_tokenizer(
        level, content, directory, *further, **arguments
    )
    if directory is not None:
        keep(directory)
    return tokenizer


def reference_words(train, lower_case=False):
    """Transformer-XL's vocabulary, from its description: ids by count, then by time."""
    words = []
    for line in train.splitlines():
        words += (line.strip().lower() if lower_case else line.strip()).split()
    first = {word: words.index(word) for word in set(words)}
    return ["<eos>", *sorted(first, key=lambda w: (-words.count(w), first[w]))]


@pytest.mark.parametrize("lower_case", [False, True])
def test_words_as_in_the_reference(lower_case):
    generator = np.random.default_rng(0)
    words = generator.choice(["a", "A", "b", "Bb", "bb", "c", "<unk>", "\n"], 500)
    train = " ".join(words)
    tokenizer = load("word", train, lower_case=lower_case)
    assert tokenizer.get_vocabulary() == reference_words(train, lower_case)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("a b\n", [2, 1, 0]),
        ("a b", [2, 1, 0]),  # A line without an end has one too.
        ("a\n\n \nb\n", [2, 0, 0, 0, 1, 0]),
        ("a\x0bb\u2028c\n", [2, 1, 4, 0]),  # White space, but no line ends.
        ("", []),
    ],
)
def test_every_line_ends_with_eos(content, ids):
    encoded = text.encode(load("word"), content)
    assert encoded.tolist() == ids
    assert encoded.dtype == np.int32


def test_unknown_words_become_unk():
    assert text.encode(load("word"), "a zebra\n").tolist() == [2, 3, 0]


def test_unknown_word_without_unk():
    words = "Line 2 .* of 3 tokens .*'<unk>'.*'zebra'.*minimum_count=2"
    with pytest.raises(InputError, match=words):
        text.encode(load("word", "a b\n"), "a\nb zebra\n")


@pytest.mark.slow
def test_unknown_word_far_down():
    with pytest.raises(InputError, match="Line 3002 .*'zebra'"):
        text.encode(load("word", "a b\n"), 3001 * "a\n" + "b zebra\n")


def test_rare_words_become_unk():
    tokenizer = load("word", "a a b c d d d\n", minimum_count=2)
    assert tokenizer.get_vocabulary() == ["<eos>", "d", "a", "<unk>"]
    ids = text.encode(tokenizer, "a b zebra")
    assert tokenizer.detokenize(ids) == "a <unk> <unk>\n"
    none_rare = load("word", "a a\n", minimum_count=2)
    assert none_rare.get_vocabulary() == ["<eos>", "a", "<unk>"]


def test_unknown_character():
    with pytest.raises(InputError, match="Line 3 .* of 3 tokens .*'ß'"):
        text.encode(load("character", "ab\n"), "a\nb\naß")


def test_bytes():
    tokenizer = load("byte")
    ids = text.encode(tokenizer, "né🜚\n")
    assert ids.tolist() == list("né🜚\n".encode())
    assert ids.dtype == np.int32
    assert tokenizer.detokenize(ids) == "né🜚\n"
    assert tokenizer.detokenize(ids[:2]) == "n\ufffd"
    assert tokenizer.vocabulary_size() == 256


SENTENCE = "low lower lowest, new newer newest (naïve 🜚)\n"


@pytest.fixture(scope="module")
def subwords():
    return load("subword", SENTENCE * 20, vocabulary_size=80)


@pytest.fixture(params=["word", "character", "subword", "byte"])
def tokenizer(request):
    if request.param == "subword":
        return request.getfixturevalue("subwords")
    return load(request.param, SENTENCE)


def test_subwords(subwords):
    assert isinstance(subwords, WordPieceTokenizer)
    assert subwords.vocabulary_size() <= 80
    content = "newest\n\n  low (lower\r), naïve 🜚"
    ids = text.encode(subwords, content)
    assert ids.dtype == np.int32
    assert len(ids) < len(content)
    assert subwords.detokenize(ids) == "newest low ( lower ) , naïve 🜚"
    assert text.encode(subwords, "").tolist() == []
    assert subwords.detokenize(text.encode(subwords, "low Ω")) == "low [UNK]"


def test_lower_case_subwords():
    tokenizer = load(
        "subword", SENTENCE.upper() * 20, lower_case=True, vocabulary_size=80
    )
    ids = text.encode(tokenizer, "LOW newest")
    assert tokenizer.detokenize(ids) == "low newest"


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\x85"])
def test_saved_subwords_of_other_white_space(tmp_path, space):
    tokenizer = load("subword", f"low{space}lower {space}\n" * 20, vocabulary_size=40)
    tokenizer.save_assets(tmp_path)
    copy = WordPieceTokenizer()
    copy.load_assets(tmp_path)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    np.testing.assert_array_equal(copy("lower low"), tokenizer("lower low"))


def test_too_few_subwords():
    with pytest.raises(InputError, match="vocabulary_size=30"):
        load("subword", SENTENCE * 20, vocabulary_size=30)


def test_a_corpus_has_the_ids_of_the_tokenizer(tokenizer):
    for content in (SENTENCE, "low new\n\nnewest (naïve\n"):
        ids = text.encode(tokenizer, content)
        np.testing.assert_array_equal(tokenizer(content), ids)
        if not isinstance(tokenizer, WordPieceTokenizer):
            assert tokenizer.detokenize(ids) == content


def test_a_long_corpus_has_the_ids_of_the_tokenizer(tokenizer):
    content = "".join(f"{SENTENCE[: k % 30]}\n" for k in range(2500)).lower()
    if tokenizer.vocabulary_size() < 50:  # Not all have parts of words.
        content = SENTENCE * 2500
    np.testing.assert_array_equal(text.encode(tokenizer, content), tokenizer(content))


@pytest.mark.parametrize("level", ["word", "character"])
def test_a_corpus_in_lower_case_has_the_ids_of_the_tokenizer(level):
    tokenizer = load(level, lower_case=True)
    np.testing.assert_array_equal(
        tokenizer("A <UNK> B\n"), text.encode(tokenizer, "A <UNK> B\n")
    )


@pytest.fixture
def counted(monkeypatch):
    """The texts that vocabularies were counted from."""
    texts = []
    for cls in (WordTokenizer, CharacterTokenizer):

        def counting(lines, learn=cls.learn, **kwargs):
            texts.append("".join(lines))
            return learn([texts[-1]], **kwargs)

        monkeypatch.setattr(cls, "learn", counting)
    return texts


@pytest.mark.parametrize("level", ["word", "character"])
def test_second_time_from_the_cache(tmp_path, counted, level):
    folder = tmp_path / "new" / "folder"
    made = load(level, TRAIN, folder, lower_case=True)
    read = load(level, TRAIN, folder, lower_case=True)
    assert counted == [TRAIN]
    assert read.get_vocabulary() == made.get_vocabulary()
    np.testing.assert_array_equal(
        text.encode(read, "A b\n"), text.encode(made, "A b\n")
    )
    assert [file.name for file in folder.iterdir()] == [f"vocabulary.{level}.json"]


def test_subwords_from_the_cache(tmp_path, monkeypatch):
    made = load("subword", SENTENCE * 20, tmp_path, vocabulary_size=80)
    monkeypatch.setattr("keras_hub.tokenizers.compute_word_piece_vocabulary", None)
    read = load("subword", SENTENCE * 20, tmp_path, vocabulary_size=80)
    assert read.get_vocabulary() == made.get_vocabulary()
    np.testing.assert_array_equal(
        text.encode(read, SENTENCE), text.encode(made, SENTENCE)
    )


@pytest.mark.parametrize(
    "changed",
    [{"content": TRAIN + "d"}, {"lower_case": True}, {"minimum_count": 2}],
)
def test_another_vocabulary_than_that_of_a_run_is_refused(tmp_path, changed):
    load("word", TRAIN, tmp_path)
    content = (tmp_path / "vocabulary.word.json").read_text()
    with pytest.raises(InputError, match="text was changed since the run began"):
        load("word", directory=tmp_path, **{"content": TRAIN, **changed})
    assert (tmp_path / "vocabulary.word.json").read_text() == content


def test_a_text_with_the_same_vocabulary_replaces_the_cache(tmp_path, counted):
    for _ in range(2):
        load("word", TRAIN, tmp_path)
        load("word", TRAIN + TRAIN, tmp_path)
    assert counted == [TRAIN, TRAIN + TRAIN] * 2


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"tokens": [', b"\xff", b"[" * 10**5, b"3", b"null"],
)
def test_damaged_cache_is_replaced(tmp_path, content):
    file = tmp_path / "vocabulary.word.json"
    file.write_bytes(content)
    vocabulary = load("word", TRAIN, tmp_path).get_vocabulary()
    assert json.loads(file.read_text())["tokens"] == vocabulary


@pytest.mark.parametrize(
    "tokens", [["<eos>", "x"], ["<eos>"] * 9, [1, 2], "words", {}, None, [[]]]
)
def test_other_tokens_in_the_cache_are_replaced(tmp_path, tokens):
    file = tmp_path / "vocabulary.word.json"
    expected = load("word", TRAIN, tmp_path).get_vocabulary()
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "tokens": tokens}))
    assert load("word", TRAIN, tmp_path).get_vocabulary() == expected
    assert json.loads(file.read_text()) == content


def test_cache_that_cannot_be_written(tmp_path):
    expected = load("word", TRAIN).get_vocabulary()
    (tmp_path / "vocabulary.word.json").mkdir()
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file", tmp_path / ("x" * 300)):
        assert load("word", TRAIN, folder).get_vocabulary() == expected
    assert (tmp_path / "file").read_text() == "mine"


def test_cache_is_text_of_one_token_a_line(tmp_path):
    load("character", "né\n", tmp_path)
    lines = (tmp_path / "vocabulary.character.json").read_text("utf-8").splitlines()
    assert lines[-5:] == ['"\\n",', '"n",', '"é"', "]", "}"]


def test_without_a_folder_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load("word", TRAIN)
    load("byte", TRAIN, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("words", TRAIN), "level='words'.* Did you mean `word`"),
        (("word", " \n"), "training text is empty"),
        (("word", TRAIN, None, False, 0), "minimum_count=0"),
        (("byte", TRAIN, None, True), "lower_case=True"),
        (("word", TRAIN, None, False, 1, 9), "Received: word, vocabulary_size=9"),
        (("byte", TRAIN, None, False, 1, 9), "Received: byte, vocabulary_size=9"),
        (("subword", TRAIN), "Received: subword, vocabulary_size=None"),
        (("subword", TRAIN, None, False, 2, 9), "no `minimum_count`"),
    ],
)
def test_refuses(arguments, words):
    with pytest.raises(InputError, match=words):
        load(*arguments)
