"""A corpus is read from its standard layouts and cut into contiguous parts."""

import numpy as np
import pytest

from training.data import text
from training.errors import InputError

LAYOUTS = {
    "wikitext": "wiki.{}.tokens",
    "raw wikitext": "wiki.{}.raw",
    "penn treebank": "ptb.{}.txt",
    "any": "{}.txt",
}


def write_splits(folder, pattern, splits=("train", "valid", "test")):
    for split in splits:
        (folder / pattern.format(split)).write_bytes(f" the {split} \n\n".encode())


@pytest.mark.parametrize("pattern", LAYOUTS.values(), ids=LAYOUTS)
def test_standard_layouts(tmp_path, pattern):
    write_splits(tmp_path, pattern)
    (tmp_path / "README.md").write_text("Something else.")
    corpus = text.from_directory(tmp_path)
    assert corpus == (" the train \n\n", " the valid \n\n", " the test \n\n")


@pytest.mark.parametrize("validation", ["valid", "validation"])
def test_test_file_is_optional(tmp_path, validation):
    write_splits(tmp_path, "{}.txt", ["train", validation])
    corpus = text.from_directory(tmp_path)
    assert corpus.train and corpus.validation
    assert corpus.test == ""
    (tmp_path / "test.txt").write_text("words to test on")
    assert text.from_directory(tmp_path).test == "words to test on"


@pytest.mark.parametrize(
    ("patterns", "splits", "words"),
    [
        ([], [], "wiki.train.tokens.*It holds: no files"),
        (["ptb.{}.txt"], ["valid", "test"], "lacks ptb.train.txt"),
        (["{}.txt"], ["train", "valid", "validation"], "more than one corpus"),
        (["ptb.{}.txt", "{}.txt"], ["train", "valid", "test"], "more than one corpus"),
    ],
)
def test_folder_without_one_corpus_raises(tmp_path, patterns, splits, words):
    for pattern in patterns:
        write_splits(tmp_path, pattern, splits)
    with pytest.raises(InputError, match=words):
        text.from_directory(tmp_path)


def test_folder_in_place_of_a_file_raises(tmp_path):
    write_splits(tmp_path, "{}.txt", ["train", "valid"])
    (tmp_path / "test.txt").mkdir()
    for folder, words in [
        (tmp_path, "lacks test.txt"),
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / "train.txt", "is no folder"),
    ]:
        with pytest.raises(InputError, match=words):
            text.from_directory(folder)


@pytest.mark.parametrize(("fraction", "length"), [(0.1, 90), (0.5, 50)])
def test_file_is_cut_into_contiguous_parts(tmp_path, fraction, length):
    content = "".join(chr(0xE0 + i % 7) for i in range(100))
    (tmp_path / "book.txt").write_text(content, encoding="utf-8")
    corpus = text.from_file(tmp_path / "book.txt", fraction)
    assert corpus == (content[:length], content[length:], "")


def test_line_ends_are_normalized(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\x0bfour\n")
    corpus = text.from_file(tmp_path / "dos.txt", validation_fraction=0)
    assert corpus.train == "one\ntwo\nthree\x0bfour\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (MemoryError(), "it is too large"),
    ],
)
def test_unreadable_file_is_named(tmp_path, monkeypatch, error, words):
    file = tmp_path / "book.txt"
    file.write_text("words")

    def fail(path):
        raise error

    monkeypatch.setattr("pathlib.Path.read_bytes", fail)
    with pytest.raises(InputError, match=f"{file} cannot be read: .*{words}"):
        text.from_file(file)


def test_embedded_text_has_three_splits():
    corpus = text.load_embedded()
    whole = "".join(corpus)
    assert len(whole) > 300_000
    np.testing.assert_allclose(
        [len(split) / len(whole) for split in corpus], [0.9, 0.05, 0.05], atol=1e-4
    )
    tokenizer, _ = text.find_tokenizer("character", corpus.train)
    for split in corpus:
        assert tokenizer.detokenize(text.encode(tokenizer, split)) == split
