"""Checks of files and folders of a user, and reading of their text."""

import os
import stat
from pathlib import Path

from ..errors import InputError

_BYTE_ORDER_MARK = "\ufeff"


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


def check_new(path, kind="file"):
    """Raises `InputError` unless a path of `--out` is new, in an existing folder.

    Args:
        path: `pathlib.Path` to write to.
        kind: String. `"file"` or `"folder"`, for messages.
    """
    if os.path.lexists(path):
        raise InputError(f"--out must be a new {kind}. Received: {path}, which exists.")
    check_folder(path.absolute().parent, "folder of --out")


def read_text(path):
    """Returns the text of a UTF-8 file with line ends `\\n`.

    Removes a byte order mark at the start.

    Args:
        path: Path of the file.

    Raises:
        InputError: If the file cannot be read, contains only white space, or is not
            UTF-8 text. The message names the first invalid byte and its position.
    """
    path = Path(path)
    check_file(path, "text file")
    try:
        text = _decode(path.read_bytes(), path).removeprefix(_BYTE_ORDER_MARK)
    except (MemoryError, OSError) as error:
        raise InputError(
            f"The text file {path} cannot be read: {str(error) or 'it is too large'}. "
            "It is held in memory as a whole."
        ) from error
    if not text or text.isspace():
        raise InputError(
            f"Expected text in {path}. It holds {path.stat().st_size} bytes, none of "
            "them more than white space."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _reason(path, error):
    if isinstance(error, NotADirectoryError) and os.path.lexists(path):
        return "is no folder"
    if not isinstance(error, FileNotFoundError):
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if os.path.islink(path):
        return f"does not exist: it is a link to {os.readlink(path)}"
    return "does not exist"


def _decode(content, path):
    position = content.find(b"\0")  # Valid UTF-8, but never part of a text.
    if position < 0:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            position = error.start
    line = content.count(b"\n", 0, position) + 1
    raise InputError(
        f"Expected UTF-8 text in {path}. Received: byte 0x{content[position]:02x} at "
        f"position {position}, in line {line}. If it is text in another encoding, "
        "convert it, for example with `iconv -f latin1 -t utf-8`; a compressed file "
        "must be unpacked."
    )
