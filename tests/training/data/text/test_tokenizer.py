"""Tokenizers of a corpus: their ids, and a cache per vocabulary."""

import json

import numpy as np
import pytest
from keras_hub.tokenizers import WordPieceTokenizer

from deq_keras.tokenizers import CharacterTokenizer
from training.data import text
from training.data.text import WordTokenizer
from training.errors import InputError

TRAIN = " b a <unk> \n\n c b A \n"


def load(level, content=TRAIN, directory=None, **arguments):
    """Returns a tokenizer, and keeps its vocabulary in a folder, if there is one."""
    tokenizer, keep = text.find_tokenizer(level, content, directory, **arguments)
    if directory is not None:
        keep(directory)
    return tokenizer


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("a b", [2, 1, 0]),  # A line without an end has one too.
        ("a\n\n \nb\n", [2, 0, 0, 0, 1, 0]),
        ("", []),
    ],
)
def test_lines_end_with_eos(content, ids):
    encoded = text.encode(load("word"), content)
    assert encoded.tolist() == ids
    assert encoded.dtype == np.int32


def test_unknown_word_raises():
    with pytest.raises(InputError, match="Line 2 .*'zebra'.*minimum_count=2"):
        text.encode(load("word", "a b\n"), "a\nb zebra\n")


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


@pytest.mark.parametrize("space", ["\u00a0", "\u2028"])
def test_saved_subwords_of_other_white_space(tmp_path, space):
    tokenizer = load("subword", f"low{space}lower {space}\n" * 20, vocabulary_size=40)
    tokenizer.save_assets(tmp_path)
    copy = WordPieceTokenizer()
    copy.load_assets(tmp_path)
    assert copy.get_vocabulary() == tokenizer.get_vocabulary()
    np.testing.assert_array_equal(copy("lower low"), tokenizer("lower low"))


def test_corpus_has_the_ids_of_the_tokenizer(tokenizer):
    content = "low new\n\nnewest (naïve\n" + SENTENCE * 1200  # Several batches.
    ids = text.encode(tokenizer, content)
    np.testing.assert_array_equal(tokenizer(content), ids)
    if not isinstance(tokenizer, WordPieceTokenizer):
        assert tokenizer.detokenize(ids) == content


@pytest.fixture
def counted(monkeypatch):
    """Records the texts whose tokens are counted."""
    texts = []
    for cls in (WordTokenizer, CharacterTokenizer):

        def counting(lines, learn=cls.learn, **kwargs):
            texts.append("".join(lines))
            return learn([texts[-1]], **kwargs)

        monkeypatch.setattr(cls, "learn", counting)
    return texts


@pytest.mark.parametrize("level", ["word", "character"])
def test_second_vocabulary_comes_from_the_cache(tmp_path, counted, level):
    folder = tmp_path / "new" / "folder"
    made = load(level, TRAIN, folder, lower_case=True)
    read = load(level, TRAIN, folder, lower_case=True)
    assert counted == [TRAIN]
    assert read.get_vocabulary() == made.get_vocabulary()
    np.testing.assert_array_equal(
        text.encode(read, "A b\n"), text.encode(made, "A b\n")
    )
    assert [file.name for file in folder.iterdir()] == [f"vocabulary.{level}.json"]


@pytest.mark.parametrize(
    "changed", [{"content": TRAIN + "d"}, {"lower_case": True}, {"minimum_count": 2}]
)
def test_changed_vocabulary_raises(tmp_path, changed):
    load("word", TRAIN, tmp_path)
    content = (tmp_path / "vocabulary.word.json").read_text()
    with pytest.raises(InputError, match="text was changed since the run began"):
        load("word", directory=tmp_path, **{"content": TRAIN, **changed})
    assert (tmp_path / "vocabulary.word.json").read_text() == content


def test_corrupt_cache_is_replaced(tmp_path):
    file = tmp_path / "vocabulary.word.json"
    expected = load("word", TRAIN, tmp_path).get_vocabulary()
    content = json.loads(file.read_text())
    others = (["<eos>", "x"], "words", None, [[]])
    damaged = [json.dumps({**content, "tokens": tokens}).encode() for tokens in others]
    for damage in (b"", b"[]", b"{}", b"\xff", b"[" * 10**5, *damaged):
        file.write_bytes(damage)
        assert load("word", TRAIN, tmp_path).get_vocabulary() == expected
        assert json.loads(file.read_text()) == content


def test_read_only_cache_is_ignored(tmp_path):
    expected = load("word", TRAIN).get_vocabulary()
    (tmp_path / "vocabulary.word.json").mkdir()
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file", tmp_path / ("x" * 300)):
        assert load("word", TRAIN, folder).get_vocabulary() == expected
    assert (tmp_path / "file").read_text() == "mine"
