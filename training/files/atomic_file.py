"""Atomic writes of files and folders."""

import contextlib
import os
import re
import shutil
from pathlib import Path

_PARTIAL = re.compile(r"\..+\.[0-9]+\.partial(\..*)?")


@contextlib.contextmanager
def replacing(path):
    """Yields a temporary path that replaces `path` at the end of the block.

    The bytes are on disk before the rename, so after a crash either the old or the new
    file exists. After an exception, the old file remains. The path can also be a
    folder, which must be new or empty.

    Args:
        path: Path of the file to write. The temporary path has the same suffix.

    Raises:
        OSError: If the file cannot be written. The error names `path`.

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
    except OSError as error:
        # The error of a full disk lacks a file name: report the target of the write.
        if error.filename not in (None, str(temporary)):
            raise
        reason = error.strerror or str(error)
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        # If it cannot be removed, it was never created.
        with contextlib.suppress(OSError):
            _remove(temporary)


def write_text(path, text):
    """Writes a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def is_partial(path):
    """Returns whether a path is the temporary path of an incomplete write."""
    return _PARTIAL.fullmatch(Path(path).name) is not None


def remove_partial(folder):
    """Removes incomplete files of killed processes in a folder and below it.

    Other processes must not write there at the same time.
    """
    for path in [*Path(folder).rglob(".*.partial*")]:
        if is_partial(path):
            _remove(path)


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush(path):
    if path.is_dir() and os.name == "nt":  # Windows cannot open a directory.
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
