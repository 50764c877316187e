"""Errors that a user can cause and fix."""

import contextlib
import errno
import re

_LONGEST_REASON = 600
# Errors of the operating system that a user can fix, and how.
REMEDIES = {
    errno.ENOSPC: "Free some space, then run the command again (train: with --resume).",
    errno.EDQUOT: "Free some space, then run the command again (train: with --resume).",
    errno.EACCES: "Change its permissions, or choose another place.",
    errno.EPERM: "Change its permissions, or choose another place.",
    errno.EROFS: "Choose a place that can be written.",
    errno.ENOTDIR: "Choose a path whose parents are folders.",
    errno.EISDIR: "A file belongs there: remove the folder.",
    errno.ENAMETOOLONG: "Choose a shorter path.",
}


class InputError(ValueError):
    """Raised for configs, work directories and data that cannot be used.

    The command line prints the message without a traceback.
    """


@contextlib.contextmanager
def reading(path, remedy):
    """Converts every error of reading a file to an `InputError`.

    It is for files that only this package writes: an unreadable file is corrupt or
    comes from another version.

    Args:
        path: Path of the file.
        remedy: String. Sentence that says how to fix the error.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise InputError(describe(error)) from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if len(reason) > 300:
            reason = f"{reason[:300]} ..."
        raise InputError(
            f"{path} cannot be read: it is damaged, or not what it should be. {remedy} "
            f"({reason})"
        ) from error


def describe(error):
    """Returns the file, the error and a remedy of an `OSError` as a sentence."""
    trouble = error.strerror or str(error)
    names = [name for name in (error.filename, error.filename2) if name is not None]
    place = " -> ".join(map(str, names))
    remedy = REMEDIES.get(error.errno, "")
    return f"{f'{place}: ' if place else ''}{trouble}. {remedy}".rstrip()


@contextlib.contextmanager
def config_errors(path):
    """Converts the errors of its block to an `InputError` that names a config key.

    A config is valid only if everything can be built from it. Components and layers
    check their own arguments and raise their own errors.

    Args:
        path: String. Dotted path of the config key.
    """
    import tensorflow as tf  # Deferred: the command line starts without TensorFlow.

    try:
        yield
    except InputError:
        raise
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise InputError(
            f"`{path}` needs more memory than is available. Use smaller sizes, such as "
            f"fewer filters or units. ({_reason(error)})"
        ) from error
    except (ArithmeticError, TypeError, ValueError, tf.errors.OpError) as error:
        raise InputError(f"`{path}`: {_reason(error)}") from error


def _reason(error):
    """Returns the message of an error on one line."""
    # Keras encloses the message of an error in a layer's call in bold type.
    text = str(error).partition("\x1b[1m")[2].partition("\x1b[0m")[0] or str(error)
    # An eager operation prefixes its message with its name, {{...}}.
    text = " ".join(re.sub(r"^{{.*?}}", "", text).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
