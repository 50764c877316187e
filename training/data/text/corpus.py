"""Load the texts of language models, in three splits."""

from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...files.input_file import check_folder, read_text

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


class Corpus(NamedTuple):
    """A text in three splits.

    Attributes:
        train: String to learn from; the vocabulary depends on it alone.
        validation: String that is evaluated during training; may be empty.
        test: String that tables report; may be empty.
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
        InputError: If the folder or one of the files is missing, if it holds more than
            one corpus, or if a file is empty or not text.
    """
    directory = Path(path)
    check_folder(directory, "text directory")
    entries = list(directory.iterdir())
    present = {file.name for file in entries if file.is_file()}
    layouts = [
        _files_of(layout, {entry.name for entry in entries}) for layout in _LAYOUTS
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


def from_file(path, validation_fraction=0.1):
    """Returns the `Corpus` of one UTF-8 file, cut in two; the test text is empty.

    The cut can be inside a line or a word.

    Args:
        path: The file.
        validation_fraction: Float in [0, 1). The fraction of the characters for
            validation, the last ones. Defaults to `0.1`.

    Raises:
        InputError: If the file is missing, empty or not text.
    """
    return _cut(read_text(path), validation_fraction, test_fraction=0.0)


def load_embedded():
    """Returns the `Corpus` of the documentation that ships with Python.

    The topics of Python's `help()`, 0.5 million characters of English prose and code,
    sorted by name: 90 % train, 5 % validation and 5 % test. The text differs between
    releases of Python, so numbers are comparable within one release only.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return _cut(text + "\n", validation_fraction=0.05, test_fraction=0.05)


def _files_of(layout, names):
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
    validation = int(len(text) * (1 - (validation_fraction + test_fraction)))
    test = len(text) - int(len(text) * test_fraction)
    return Corpus(text[:validation], text[validation:test], text[test:])
