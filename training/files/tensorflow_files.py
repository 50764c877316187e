"""Files that TensorFlow writes itself: event files and SavedModels."""

import contextlib
import errno
import os
import re

import tensorflow as tf

_CODES = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)


@contextlib.contextmanager
def writing(path):
    """Converts TensorFlow's errors about files below a path to Python's `OSError`.

    Args:
        path: `pathlib.Path` to write to.

    Raises:
        OSError: If writing fails. The error names `path`.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if str(path) not in error.message:
            raise
        for code in _CODES:
            if os.strerror(code).lower() in error.message.lower():
                raise OSError(code, os.strerror(code), str(path)) from error
        reason = " ".join(re.sub(r"\{\{.*?\}\}", "", error.message).split())
        raise OSError(None, f"cannot be written ({reason})", str(path)) from error
