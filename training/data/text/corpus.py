"""Texts in three splits, from the places that language modelling takes them from."""

from pathlib import Path
from typing import NamedTuple

from ...config.refusal import closest
from ...errors import InputError
from ...files.input_file import check_folder
from ...files.text_file import read_text
from .. import tfds

# File names of (train, validation, test). Only the layouts in `_WITHOUT_TEST` may lack
# the last file.
_LAYOUTS = (
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
    ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
    ("train.txt", "valid.txt", "test.txt"),
    ("train.txt", "validation.txt", "test.txt"),
)
_WITHOUT_TEST = _LAYOUTS[-2:]
# Name for users -> (name in TensorFlow Datasets, its splits). lm1b has no validation
# split; its held-out text is halved.
_TFDS = {
    "lm1b": ("lm1b", ("train", "test[50%:]", "test[:50%]")),
    "wiki40b": ("wiki40b/en", ("train", "validation", "test")),
}


class Corpus(NamedTuple):
    """A text in three splits.

    Attributes:
        train: str to learn from, and the only one that makes a vocabulary.
        validation: str that is evaluated during training; may be empty.
        test: str that tables are made of; may be empty.
    """

    train: str
    validation: str
    test: str


def from_directory(path):
    """Returns the `Corpus` of a folder of UTF-8 files, one for each split.

    WikiText-103 and WikiText-2 (`wiki.train.tokens`, `wiki.valid.tokens`,
    `wiki.test.tokens`, or `.raw`), Penn Treebank (`ptb.train.txt`, `ptb.valid.txt`,
    `ptb.test.txt`), or your own `train.txt`, `validation.txt` (or `valid.txt`) and
    optionally `test.txt`.

    Args:
        path: The folder.

    Raises:
        InputError: if the folder or one of the files is missing, if it holds more than
            one corpus, or if a file is empty or not text.
    """
    directory = Path(path)
    check_folder(directory, "text directory")
    entries = list(directory.iterdir())
    present = {file.name for file in entries if file.is_file()}
    layouts = [
        _expected(layout, {entry.name for entry in entries}) for layout in _LAYOUTS
    ]
    complete = [layout for layout in layouts if present.issuperset(layout)]
    if not complete:
        raise InputError(_incomplete(directory, layouts, present))
    if len(complete) > 1:
        raise InputError(
            f"The text directory {directory} holds more than one corpus: "
            f"{' and '.join(' and '.join(layout[:2]) for layout in complete)}. Move "
            "them into folders of their own."
        )
    texts = [read_text(directory / name) for name in complete[0]]
    return Corpus(*texts, *(3 - len(texts)) * [""])


def from_file(path, validation_fraction=0.1, test_fraction=0.0):
    """Returns the `Corpus` of one UTF-8 file, cut in three contiguous parts.

    The text is cut between two characters, wherever in a line or a word they stand.

    Args:
        path: the file.
        validation_fraction: float in [0, 1). The part of the characters, before those
            of `test_fraction`, that validates. Defaults to `0.1`.
        test_fraction: float in [0, 1). The part of the characters, the last ones, that
            tests. Defaults to `0.0`.

    Raises:
        InputError: if the file is missing, empty or no text, or if the fractions leave
            nothing to train on.
    """
    return _cut(read_text(path), validation_fraction, test_fraction)


def from_tfds(name, data_dir=None, max_examples=None):
    """Returns the `Corpus` of a text set of TensorFlow Datasets.

    Examples (sentences of `lm1b`, articles of `wiki40b`) stand on lines of their own,
    in the order of the set. They are held in memory: without `max_examples` that is 4
    GB for `lm1b` and more for `wiki40b`.

    Args:
        name: `"lm1b"`, whose validation split is the second half of the held-out text
            and whose test split is the first, or `"wiki40b"` (English).
        data_dir: folder where TensorFlow Datasets keeps its sets. Defaults to its own.
        max_examples: optional int. The most examples of a split, the first ones.

    Raises:
        InputError: if the name is another one, or the set cannot be loaded.
    """
    if name not in _TFDS:
        raise InputError(
            f"The text set must be one of {list(_TFDS)}. Received: name={name!r}."
            f"{closest(name, _TFDS)}"
        )
    import tensorflow_datasets

    full_name, splits = _TFDS[name]
    try:
        datasets = [
            tensorflow_datasets.load(full_name, split=split, data_dir=data_dir)
            for split in splits
        ]
    except tfds.preparation_errors() as error:
        raise InputError(
            f"TensorFlow Datasets could not load {full_name}. Check the connection, or "
            f"give the folder where it is prepared as `data_dir`. ({error})"
        ) from error
    with tfds.reading(full_name):
        texts = [list(_texts(dataset, max_examples)) for dataset in datasets]
    try:
        return Corpus(*map(_joined, texts))
    except UnicodeDecodeError as error:
        raise InputError(
            f"The text set {full_name} holds something else than UTF-8 text: {error}. "
            "Prepare it anew."
        ) from error


def embedded():
    """Returns the `Corpus` of the documentation that ships with Python.

    The topics of Python's `help()`, 0.5 million characters of English prose and code,
    in the order of their names: 90 % train, 5 % validation and 5 % test. The text
    differs between releases of Python, so numbers compare within one release only.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return _cut(text + "\n", validation_fraction=0.05, test_fraction=0.05)


def _expected(layout, names):
    """Returns the file names of a layout; its test file only if `names` require it."""
    is_optional = layout in _WITHOUT_TEST and layout[2] not in names
    return layout[:2] if is_optional else layout


def _incomplete(directory, layouts, present):
    """Returns an error that names what the most similar layout lacks."""
    layout = max(layouts, key=lambda names: len(present.intersection(names)))
    found = [name for name in layout if name in present]
    if found:
        missing = ", ".join(name for name in layout if name not in present)
        return (
            f"The text directory {directory} has {', '.join(found)}, but lacks "
            f"{missing}. Put the missing split there; for one file without splits give "
            "the file itself."
        )
    expected = "; or ".join(", ".join(names) for names in layouts)
    content = ", ".join(sorted(present)[:8]) or "no files"
    return f"The text directory {directory} must hold {expected}. It holds: {content}."


def _cut(text, validation_fraction, test_fraction):
    fractions = (validation_fraction, test_fraction)
    if min(fractions) < 0 or sum(fractions) >= 1:
        raise InputError(
            "Fractions must be at least 0, and less than 1 together. Received: "
            f"validation_fraction={validation_fraction}, test_fraction={test_fraction}."
        )
    validation = int(len(text) * (1 - sum(fractions)))
    test = len(text) - int(len(text) * test_fraction)
    return Corpus(text[:validation], text[validation:test], text[test:])


def _texts(dataset, max_examples):
    if max_examples is not None:
        dataset = dataset.take(max_examples)
    return (example["text"] for example in dataset.as_numpy_iterator())


def _joined(texts):
    return "".join(f"{text.decode('utf-8').strip()}\n" for text in texts)
