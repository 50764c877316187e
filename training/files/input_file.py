"""Checks that files and folders of a user can be read."""

import os
import stat

from ..errors import InputError


def check_file(path, kind="file"):
    """Raises `InputError` unless a path is a regular file that can be opened.

    Rejects pipes and devices, on which a program can block forever.

    Args:
        path: Path of the file.
        kind: String. Name of the file in messages.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            with open(path, "rb"):
                return
    except (OSError, ValueError) as error:
        raise InputError(f"The {kind} {path} {_reason(path, error)}.") from error
    what = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
    raise InputError(f"The {kind} {path} {what}. Expected: a file.")


def check_folder(path, kind="folder"):
    """Raises `InputError` unless a path is a folder whose files can be listed.

    Args:
        path: Path of the folder.
        kind: String. Name of the folder in messages.
    """
    try:
        with os.scandir(path):
            return
    except (OSError, ValueError) as error:
        raise InputError(f"The {kind} {path} {_reason(path, error)}.") from error


def _reason(path, error):
    if isinstance(error, NotADirectoryError) and os.path.lexists(path):
        return "is no folder"
    if not isinstance(error, FileNotFoundError):
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if os.path.islink(path):
        return f"does not exist: it is a link to {os.readlink(path)}"
    return "does not exist"
