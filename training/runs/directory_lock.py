"""One process at a time in a folder."""

import contextlib

import filelock

from ..errors import InputError

NAME = ".lock"


@contextlib.contextmanager
def only_process(folder):
    """Holds a folder for this process alone, until the block or the process ends.

    The operating system releases it, however the process ends: the file that stays
    behind blocks nobody.

    Args:
        folder: `pathlib.Path` of an existing folder.

    Raises:
        InputError: if another process holds it.
    """
    lock = filelock.FileLock(folder / NAME)
    try:
        # Not at once: another process may only have asked whether it is held.
        lock.acquire(timeout=0.5)
    except filelock.Timeout as error:
        raise InputError(
            f"Another process is at work in {folder}, and a work directory takes one "
            "at a time. Wait until it has ended or stop it, or choose another work "
            "directory."
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_lock(path):
    """Whether a path is the file that `only_process` makes."""
    return path.name == NAME
