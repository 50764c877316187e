import os

import numpy as np
import pytest
import tensorflow_datasets as tfds

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
def test_reads_the_standard_layouts(tmp_path, pattern):
    write_splits(tmp_path, pattern)
    (tmp_path / "README.md").write_text("Something else.")
    corpus = text.from_directory(tmp_path)
    assert corpus == (" the train \n\n", " the valid \n\n", " the test \n\n")
    assert corpus.validation == " the valid \n\n"


def test_missing_directory(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        text.from_directory(tmp_path / "nowhere")


def test_names_the_missing_split_and_what_is_there(tmp_path):
    write_splits(tmp_path, "ptb.{}.txt", ["valid", "test"])
    with pytest.raises(
        InputError, match="has ptb.valid.txt, ptb.test.txt, but lacks ptb.train.txt"
    ):
        text.from_directory(tmp_path)


@pytest.mark.parametrize("validation", ["valid", "validation"])
def test_texts_of_a_user_need_no_test_file(tmp_path, validation):
    write_splits(tmp_path, "{}.txt", ["train", validation])
    corpus = text.from_directory(tmp_path)
    assert corpus.train and corpus.validation
    assert corpus.test == ""
    (tmp_path / "test.txt").write_text("words to test on")
    assert text.from_directory(tmp_path).test == "words to test on"


def test_two_validation_files_are_refused(tmp_path):
    write_splits(tmp_path, "{}.txt", ["train", "valid", "validation"])
    with pytest.raises(InputError, match="train.txt and valid.txt and train.txt and v"):
        text.from_directory(tmp_path)


def test_a_folder_of_a_split_is_no_split(tmp_path):
    write_splits(tmp_path, "{}.txt", ["train", "valid"])
    (tmp_path / "test.txt").mkdir()
    with pytest.raises(InputError, match="lacks test.txt"):
        text.from_directory(tmp_path)


def test_folder_without_a_corpus(tmp_path):
    with pytest.raises(InputError, match="wiki.train.tokens.*It holds: no files"):
        text.from_directory(tmp_path)
    (tmp_path / "cats.zip").write_bytes(b"")
    with pytest.raises(InputError, match="It holds: cats.zip"):
        text.from_directory(tmp_path)


def test_folder_of_two_corpora(tmp_path):
    write_splits(tmp_path, "ptb.{}.txt")
    write_splits(tmp_path, "wiki.{}.tokens")
    with pytest.raises(InputError, match="wiki.train.tokens and .* and ptb.train.txt"):
        text.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("fractions", "lengths"),
    [((0.1, 0.0), (90, 10, 0)), ((0.05, 0.05), (90, 5, 5)), ((0.0, 0.5), (50, 0, 50))],
)
def test_cuts_a_file_into_contiguous_parts(tmp_path, fractions, lengths):
    content = "".join(chr(0xE0 + i % 7) for i in range(100))
    (tmp_path / "book.txt").write_text(content, encoding="utf-8")
    corpus = text.from_file(tmp_path / "book.txt", *fractions)
    assert "".join(corpus) == content
    assert tuple(map(len, corpus)) == lengths


@pytest.mark.parametrize("fractions", [(-0.1, 0.0), (0.5, 0.5), (1.5, 0.0)])
def test_fractions_that_leave_nothing(tmp_path, fractions):
    (tmp_path / "book.txt").write_text("some words")
    with pytest.raises(InputError, match="validation_fraction="):
        text.from_file(tmp_path / "book.txt", *fractions)


def test_line_ends_and_byte_order_marks_are_no_text(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\x0bfour\n")
    corpus = text.from_file(tmp_path / "dos.txt", validation_fraction=0)
    assert corpus.train == "one\ntwo\nthree\x0bfour\n"


@pytest.mark.parametrize("content", [b"", b" \n\n\t", b"\xef\xbb\xbf"])
def test_empty_file(tmp_path, content):
    (tmp_path / "empty.txt").write_bytes(content)
    with pytest.raises(InputError, match="Expected text in .*empty.txt"):
        text.from_file(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"one\ntwo \xff three", "byte 0xff at position 8, in line 2"),
        (b"caf\xe9\n", "byte 0xe9 at position 3, in line 1"),
        ("\ufeffword".encode("utf-16-le"), "byte 0x00 at position 3"),
        (b"\x1f\x8b\x08gzip", "byte 0x8b at position 1"),
        (b"PK\x03\x04\n\n\0\0", "byte 0x00 at position 6, in line 3"),
    ],
)
def test_binary_file(tmp_path, content, words):
    (tmp_path / "binary.txt").write_bytes(content)
    with pytest.raises(InputError, match=f"binary.txt. Received: {words}"):
        text.from_file(tmp_path / "binary.txt")


def test_binary_file_of_a_layout(tmp_path):
    write_splits(tmp_path, "{}.txt")
    (tmp_path / "valid.txt").write_bytes(b"\0")
    with pytest.raises(InputError, match="UTF-8 text in .*valid.txt"):
        text.from_directory(tmp_path)


def test_file_that_is_none(tmp_path):
    (tmp_path / "link.txt").symlink_to("nothing.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    for path, words in [
        (tmp_path / "nothing.txt", "nothing.txt does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "link.txt", "is a link to nothing.txt"),
        (tmp_path / "pipe.txt", "is no regular file"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(InputError, match=words):
            text.from_file(path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (MemoryError(), "it is too large. It is held in memory"),
    ],
)
def test_file_that_cannot_be_read(tmp_path, monkeypatch, error, words):
    file = tmp_path / "book.txt"
    file.write_text("words")

    def fail(path):
        raise error

    monkeypatch.setattr("pathlib.Path.read_bytes", fail)
    with pytest.raises(InputError, match=f"{file} cannot be read: .*{words}"):
        text.from_file(file)


def test_folder_that_is_none(tmp_path):
    (tmp_path / "train.txt").write_text("words")
    with pytest.raises(InputError, match="train.txt is no folder"):
        text.from_directory(tmp_path / "train.txt")
    with pytest.raises(InputError, match="File name too long"):
        text.from_directory(tmp_path / ("x" * 300))


def test_set_that_is_damaged(tmp_path, monkeypatch):
    import tensorflow as tf

    (tmp_path / "shard").write_bytes(b"words, but no records")
    damaged = tf.data.TFRecordDataset(str(tmp_path / "shard"))
    foreign = tf.data.Dataset.from_tensors(b"caf\xe9")
    for records, words in [
        (damaged, "could not read wiki40b/en: .*damaged.*tfds build wiki40b/en --over"),
        (foreign, "wiki40b/en holds something else than UTF-8"),
    ]:
        dataset = records.map(lambda record: {"text": record})
        monkeypatch.setattr(tfds, "load", lambda *args, set=dataset, **kwargs: set)
        with pytest.raises(InputError, match=words):
            text.from_tfds("wiki40b")


def test_embedded_text_is_always_the_same_and_large_enough():
    corpus = text.embedded()
    assert corpus == text.embedded()
    whole = "".join(corpus)
    assert whole.startswith('The "assert" statement')
    assert len(whole) > 300_000
    np.testing.assert_allclose(
        [len(split) / len(whole) for split in corpus], [0.9, 0.05, 0.05], atol=1e-4
    )


def test_embedded_text_suits_characters():
    corpus = text.embedded()
    tokenizer, _ = text.find_tokenizer("character", corpus.train)
    for split in corpus:
        assert tokenizer.detokenize(text.encode(tokenizer, split)) == split


@pytest.fixture
def prepared_sets(monkeypatch):
    """Replaces `tfds.load` by sets of three examples; returns what was asked for."""
    import tensorflow as tf

    calls = []

    def load(name, split, data_dir):
        calls.append((name, split, data_dir))
        texts = [f"\n{name} {split} {i} é\n" for i in range(3)]
        return tf.data.Dataset.from_tensor_slices({"text": texts})

    monkeypatch.setattr(tfds, "load", load)
    return calls


def test_held_out_text_of_lm1b_is_halved(prepared_sets):
    corpus = text.from_tfds("lm1b", data_dir="/sets")
    assert prepared_sets == [
        ("lm1b", "train", "/sets"),
        ("lm1b", "test[50%:]", "/sets"),
        ("lm1b", "test[:50%]", "/sets"),
    ]
    assert corpus.train == "lm1b train 0 é\nlm1b train 1 é\nlm1b train 2 é\n"
    assert corpus.test.startswith("lm1b test[:50%] 0")


def test_first_examples_only(prepared_sets):
    corpus = text.from_tfds("lm1b", max_examples=2)
    assert [split.count("\n") for split in corpus] == [2, 2, 2]


def test_tensorflow_datasets():
    with tfds.testing.mock_data(num_examples=4):
        corpus = text.from_tfds("wiki40b")
    assert [split.count("\n") for split in corpus] == [4, 4, 4]
    assert all(isinstance(split, str) for split in corpus)


def test_set_that_cannot_be_loaded(monkeypatch):
    def load(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(tfds, "load", load)
    with pytest.raises(InputError, match="could not load lm1b.*data_dir.*no route"):
        text.from_tfds("lm1b")


def test_unknown_set():
    with pytest.raises(InputError, match="name='lm1'.* Did you mean `lm1b`"):
        text.from_tfds("lm1")
