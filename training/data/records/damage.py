"""What is found damaged while data are read, as an error of the input that names it.

TensorFlow's errors tell the place of a damaged record only as words among others, if at
all. So after an error the records are searched for the first that cannot be used.
"""

import contextlib
import contextvars
import sys

import tensorflow as tf

from ...errors import InputError

# Of the streams that were made inside `reported`.
_searches = contextvars.ContextVar("searches", default=None)

# Errors that files and their contents can cause, unlike those of the machine.
_OF_FILES = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnimplementedError,
    tf.errors.UnknownError,
)


def searched_by(search):
    """Has `search` find the damaged record if a stream made here and now fails.

    Args:
        search: function that returns `(file, index, trouble)` of the first record that
            cannot be used, or `None`.
    """
    searches = _searches.get()
    if searches is not None:
        searches[search] = None


@contextlib.contextmanager
def reported():
    """Turns an error of reading data into an `InputError` that names what is wrong.

    An error whose cause the data are not stays what it is.
    """
    token = _searches.set({})
    try:
        yield
    except _OF_FILES as error:
        found = _first_found(_searches.get())
        if found is None:
            raise
        file, index, trouble = found
        raise InputError(
            f"The data are damaged. {trouble} File and record: {file} {index}. "
            "Replace the record, or write the file without it."
        ) from error
    finally:
        _searches.reset(token)


def _first_found(searches):
    if searches:
        print("Looking for what is damaged in the data.", file=sys.stderr, flush=True)
    return next(filter(None, (search() for search in searches)), None)
