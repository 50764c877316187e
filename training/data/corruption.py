"""Report corrupt data as an error of the input that names file and record.

TensorFlow's errors mention a corrupt record among other words, or not at all. After an
error, a finder of the stream's source therefore locates the first unusable example.
"""

import contextlib
import contextvars
import sys

import tensorflow as tf

from ..errors import InputError

# Finders of the streams built inside `locating`.
_finders = contextvars.ContextVar("finders", default=None)

# Errors that files and their contents can cause, unlike errors of the machine.
_FILE_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnimplementedError,
    tf.errors.UnknownError,
)


def add_finder(finder):
    """Registers a finder for streams that are built inside `locating`.

    Args:
        finder: Function that returns a sentence about the first unusable example, or
            `None` if all can be used.
    """
    finders = _finders.get()
    if finders is not None:
        finders[finder] = None


@contextlib.contextmanager
def locating():
    """Turns an error of reading data into an `InputError` that names the cause.

    An error that the data do not cause passes through unchanged.
    """
    token = _finders.set({})
    try:
        yield
    except _FILE_ERRORS as error:
        finders = _finders.get()
        if finders:
            words = "Looking for what is damaged in the data."
            print(words, file=sys.stderr, flush=True)
        found = next(filter(None, (finder() for finder in finders)), None)
        if found is None:
            raise
        raise InputError(f"The data are damaged. {found}") from error
    finally:
        _finders.reset(token)
