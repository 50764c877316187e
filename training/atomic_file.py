"""Files that are there completely or not at all."""

import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def replacing(path):
    """Gives a temporary path to write to, which then takes the place of `path`.

    The bytes are on disk before the name changes, so a crash at any moment leaves
    either the old file or the new one. After an exception the old file stays.

    Args:
        path: the file to write. The temporary path has the same suffix.

    Example:

    >>> with replacing("numbers.txt") as temporary:
    ...     _ = temporary.write_text("1 2 3")
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path, text):
    """Writes a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _flush(path):
    if path.is_dir() and os.name == "nt":  # Windows cannot open a directory.
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
