import json

import numpy as np
import pytest

from training.data import text
from training.errors import InputError

TRAIN = " b a <unk> \n\n c b A \n"


def reference_words(train, lower_case=False):
    """Transformer-XL's vocabulary, from its description: ids by count, then by time."""
    words = []
    for line in train.splitlines():
        words += (line.strip().lower() if lower_case else line.strip()).split()
    first = {word: words.index(word) for word in set(words)}
    return ["<eos>", *sorted(first, key=lambda w: (-words.count(w), first[w]))]


def test_words_by_count_and_first_appearance():
    vocabulary = text.WordVocabulary.from_text(TRAIN)
    assert vocabulary.tokens == ["<eos>", "b", "a", "<unk>", "c", "A"]
    assert vocabulary.size == 6
    assert vocabulary.tokens == reference_words(TRAIN)


@pytest.mark.parametrize("lower_case", [False, True])
def test_words_as_in_the_reference(lower_case):
    generator = np.random.default_rng(0)
    words = generator.choice(["a", "A", "b", "Bb", "bb", "c", "<unk>", "\n"], 500)
    train = " ".join(words)
    vocabulary = text.WordVocabulary.from_text(train, lower_case)
    assert vocabulary.tokens == reference_words(train, lower_case)


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
    encoded = text.WordVocabulary.from_text(TRAIN).encode(content)
    assert encoded.tolist() == ids
    assert encoded.dtype == np.int32


def test_words_survive_a_round_trip():
    vocabulary = text.WordVocabulary.from_text(TRAIN)
    content = "a b\n\n\nc <unk>\nA\n"
    assert vocabulary.decode(vocabulary.encode(content)) == content
    assert vocabulary.decode([1, 2]) == "b a"


def test_lower_case():
    vocabulary = text.WordVocabulary.from_text(TRAIN, lower_case=True)
    assert vocabulary.tokens == ["<eos>", "b", "a", "<unk>", "c"]
    assert vocabulary.encode("A B\n").tolist() == [2, 1, 0]


def test_unknown_words_become_unk():
    vocabulary = text.WordVocabulary.from_text(TRAIN)
    assert vocabulary.encode("a zebra\n").tolist() == [2, 3, 0]


def test_unknown_word_without_unk():
    vocabulary = text.WordVocabulary.from_text("a b\n")
    with pytest.raises(
        InputError, match="'zebra' in line 2 .* of 3 words, nor is <unk"
    ):
        vocabulary.encode("a\nb zebra\n")


def test_rare_words_become_unk():
    vocabulary = text.WordVocabulary.from_text("a a b c d d d\n", minimum_count=2)
    assert vocabulary.tokens == ["<eos>", "d", "a", "<unk>"]
    assert vocabulary.decode(vocabulary.encode("a b zebra")) == "a <unk> <unk>\n"
    none_rare = text.WordVocabulary.from_text("a a\n", minimum_count=2)
    assert none_rare.tokens == ["<eos>", "a", "<unk>"]


def test_characters_by_code_point():
    vocabulary = text.CharacterVocabulary.from_text("né\nan 🜚")
    assert vocabulary.tokens == ["\n", " ", "a", "n", "é", "🜚"]
    ids = vocabulary.encode("🜚na\n")
    assert ids.tolist() == [5, 3, 2, 0]
    assert ids.dtype == np.int32
    assert vocabulary.decode(ids) == "🜚na\n"
    assert vocabulary.encode("").tolist() == []


def test_unknown_character():
    vocabulary = text.CharacterVocabulary.from_text("ab\n")
    with pytest.raises(InputError, match="'ß' in line 3 .* of 3 characters"):
        vocabulary.encode("a\nb\naß")


def test_rare_characters_become_the_replacement_character():
    vocabulary = text.CharacterVocabulary.from_text("aab", minimum_count=2)
    assert vocabulary.tokens == ["a", "\ufffd"]
    assert vocabulary.decode(vocabulary.encode("abß")) == "a\ufffd\ufffd"


def test_lower_case_characters():
    vocabulary = text.CharacterVocabulary.from_text("AaB", lower_case=True)
    assert vocabulary.tokens == ["a", "b"]
    assert vocabulary.encode("AB").tolist() == [0, 1]


def test_bytes():
    vocabulary = text.ByteVocabulary()
    ids = vocabulary.encode("né🜚\n")
    assert ids.tolist() == list("né🜚\n".encode())
    assert ids.dtype == np.int32
    assert vocabulary.decode(ids) == "né🜚\n"
    assert vocabulary.decode(ids[:2]) == "n\ufffd"
    assert vocabulary.size == 256


SENTENCE = "low lower lowest, new newer newest (naïve 🜚)\n"


@pytest.fixture(scope="module")
def subwords():
    return text.SubwordVocabulary.from_text(SENTENCE * 20, vocabulary_size=80)


@pytest.fixture(params=["word", "character", "subword", "byte"])
def vocabulary(request):
    if request.param == "subword":
        return request.getfixturevalue("subwords")
    return text.load_vocabulary(request.param, SENTENCE)


def test_subwords(subwords):
    assert subwords.size == len(subwords.tokens) <= 80
    content = "newest\n\n  low (lower\r), naïve 🜚"
    ids = subwords.encode(content)
    assert ids.dtype == np.int32
    assert len(ids) < len(content)
    assert subwords.decode(ids) == content.replace("\r", "")
    assert subwords.encode("").tolist() == []
    assert subwords.decode([]) == ""
    assert subwords.decode(subwords.encode("low Ω")) == "low\ufffd"


def test_lower_case_subwords():
    vocabulary = text.SubwordVocabulary.from_text(
        SENTENCE.upper() * 20, lower_case=True, vocabulary_size=80
    )
    assert vocabulary.decode(vocabulary.encode("LOW newest")) == "low newest"


def test_too_few_subwords():
    with pytest.raises(InputError, match="vocabulary_size=30"):
        text.SubwordVocabulary.from_text(SENTENCE * 20, vocabulary_size=30)


def test_the_tokenizer_has_the_same_ids(vocabulary):
    tokenizer = vocabulary.tokenizer()
    assert tokenizer.vocabulary_size() == vocabulary.size
    for content in (SENTENCE, "low new\n\nnewest (naïve\n"):
        ids = vocabulary.encode(content)
        np.testing.assert_array_equal(tokenizer(content), ids)
        assert tokenizer.detokenize(ids) == vocabulary.decode(ids) == content


@pytest.mark.parametrize("level", ["word", "character"])
def test_the_tokenizer_of_lower_case_has_the_same_ids(level):
    vocabulary = text.load_vocabulary(level, TRAIN, lower_case=True)
    np.testing.assert_array_equal(
        vocabulary.tokenizer()("A <UNK> B\n"), vocabulary.encode("A <UNK> B\n")
    )


@pytest.mark.parametrize("level", ["word", "character", "byte"])
@pytest.mark.parametrize("ids", [[0, -1], [0, 256]])
def test_ids_out_of_range(level, ids):
    vocabulary = text.load_vocabulary(level, TRAIN)
    with pytest.raises(InputError, match=rf"0 ... .*id={ids[1]} at position 1"):
        vocabulary.decode(ids)


@pytest.mark.parametrize("ids", [[[0]], [0.5]])
def test_ids_of_another_kind(ids):
    with pytest.raises(InputError, match=r"shape \(num_tokens,\)"):
        text.ByteVocabulary().decode(ids)


def test_no_ids_are_no_text():
    assert text.WordVocabulary.from_text(TRAIN).decode([]) == ""


@pytest.fixture
def counted(monkeypatch):
    """The texts that vocabularies were counted from."""
    texts = []
    for cls in (text.WordVocabulary, text.CharacterVocabulary, text.SubwordVocabulary):
        from_text = cls.from_text

        def counting(training_text, from_text=from_text, **kwargs):
            texts.append(training_text)
            return from_text(training_text, **kwargs)

        monkeypatch.setattr(cls, "from_text", counting)
    return texts


@pytest.mark.parametrize("level", ["word", "character"])
def test_second_time_from_the_cache(tmp_path, counted, level):
    folder = tmp_path / "new" / "folder"
    made = text.load_vocabulary(level, TRAIN, folder, lower_case=True)
    read = text.load_vocabulary(level, TRAIN, folder, lower_case=True)
    assert counted == [TRAIN]
    assert read.tokens == made.tokens
    np.testing.assert_array_equal(read.encode("A b\n"), made.encode("A b\n"))
    assert [file.name for file in folder.iterdir()] == [f"vocabulary.{level}.json"]


def test_subwords_from_the_cache(tmp_path, counted):
    made, read, _ = (
        text.load_vocabulary("subword", SENTENCE * 20, tmp_path, vocabulary_size=size)
        for size in (80, 80, 70)
    )
    assert len(counted) == 2
    assert read.tokens == made.tokens
    np.testing.assert_array_equal(read.encode(SENTENCE), made.encode(SENTENCE))


@pytest.mark.parametrize(
    "changed",
    [{"training_text": TRAIN + "d"}, {"lower_case": True}, {"minimum_count": 2}],
)
def test_stale_cache_is_replaced(tmp_path, counted, changed):
    text.load_vocabulary("word", TRAIN, tmp_path)
    arguments = {"training_text": TRAIN, **changed}
    vocabulary = text.load_vocabulary("word", directory=tmp_path, **arguments)
    assert vocabulary.tokens == text.load_vocabulary("word", **arguments).tokens
    text.load_vocabulary("word", directory=tmp_path, **arguments)
    assert len(counted) == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"tokens": [', b"\xff", b"[" * 10**5, b"3", b"null"],
)
def test_damaged_cache_is_replaced(tmp_path, content):
    file = tmp_path / "vocabulary.word.json"
    file.write_bytes(content)
    vocabulary = text.load_vocabulary("word", TRAIN, tmp_path)
    assert json.loads(file.read_text())["tokens"] == vocabulary.tokens


@pytest.mark.parametrize(
    "tokens", [["<eos>", "x"], ["<eos>"] * 9, [1, 2], "words", {}, None, [[]]]
)
def test_other_tokens_in_the_cache_are_replaced(tmp_path, tokens):
    file = tmp_path / "vocabulary.word.json"
    expected = text.load_vocabulary("word", TRAIN, tmp_path).tokens
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "tokens": tokens}))
    assert text.load_vocabulary("word", TRAIN, tmp_path).tokens == expected
    assert json.loads(file.read_text()) == content


def test_cache_that_cannot_be_written(tmp_path):
    expected = text.load_vocabulary("word", TRAIN).tokens
    (tmp_path / "vocabulary.word.json").mkdir()
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file", tmp_path / ("x" * 300)):
        assert text.load_vocabulary("word", TRAIN, folder).tokens == expected
    assert (tmp_path / "file").read_text() == "mine"


def test_cache_is_text_of_one_token_a_line(tmp_path):
    text.load_vocabulary("character", "né\n", tmp_path)
    lines = (tmp_path / "vocabulary.character.json").read_text("utf-8").splitlines()
    assert lines[-5:] == ['"\\n",', '"n",', '"é"', "]", "}"]


def test_without_a_folder_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text.load_vocabulary("word", TRAIN)
    text.load_vocabulary("byte", TRAIN, tmp_path)
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
        text.load_vocabulary(*arguments)
