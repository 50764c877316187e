"""Files and folders that a user names: whether they can be read at all."""

import os
import stat

from ..errors import InputError


def check_file(path, kind="file"):
    """Raises `InputError` unless a path is a regular file that can be opened.

    Pipes and devices, which a program can wait for without end, are refused.

    Args:
        path: the path.
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
        path: the path.
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
