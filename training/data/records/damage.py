"""What is found damaged while data are read, as an error of the input that names it.

Where a check fails, the assertion tells file and record. TensorFlow's decoders do not:
after such an error, and only then, the records are searched for the one it was.
"""

import contextlib
import contextvars
import re

import tensorflow as tf

from ...errors import InputError

# Around the file and the record, at the end of what an assertion says.
PLACE = "File and record:"
_END = "(end of place)"
_REMEDY = "Replace the record, or write the file without it."

# Of the streams that were made inside `reported`.
_searches = contextvars.ContextVar("searches", default=None)

# Errors of files and their contents, unlike those of the machine or the program.
_OF_FILES = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnimplementedError,
    tf.errors.UnknownError,
)
# What messages say of the program: its nodes, operations and iterators.
_PROGRAM = re.compile(
    r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:.*?\]( name:)?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+"
)


def place(file, index):
    """Returns what the data of an assertion about a record must end with."""
    return [PLACE, file, index, _END]


def searched_by(search):
    """Has `search` find the damaged record if a stream made here and now fails.

    Args:
        search: function that returns `(file, index, words)` of the first record that
            cannot be decoded, or `None`.
    """
    searches = _searches.get()
    if searches is not None:
        searches[search] = None


@contextlib.contextmanager
def reported():
    """Turns an error of reading data into an `InputError` that names what is wrong."""
    token = _searches.set({})
    try:
        yield
    except tf.errors.OpError as error:
        message = _explained(error, _searches.get())
        if message is None:
            raise
        raise InputError(message) from error
    finally:
        _searches.reset(token)


def plain(error):
    """Returns in one line what an error of TensorFlow says, without its program."""
    lines = [line.strip() for line in _PROGRAM.sub("", error.message).splitlines()]
    lines = [line for line in lines if line] or [type(error).__name__]
    # Of several errors in a graph, the first; of one, what follows its node.
    several = [line for line in lines if line.startswith("(0)")]
    return (several or lines[-1:])[0]


def _explained(error, searches):
    """Returns the message of an `InputError`, or `None` for an error of other kind."""
    _, failed, rest = error.message.partition("assertion failed: [")
    if failed and PLACE in rest:
        words = rest.partition(f"] [{_END}]")[0].replace("] [", " ")
        return f"The data are damaged. {words}. {_REMEDY}"
    # All iterators over data sets have this name; operations of models have not.
    if "GetNext" not in error.message or not isinstance(error, _OF_FILES):
        return None
    is_content = isinstance(error, tf.errors.InvalidArgumentError)
    found = _first_found(searches) if is_content else None
    if found is not None:
        file, index, words = found
        return f"The data are damaged. {words} {PLACE} {file} {index}. {_REMEDY}"
    return f"The data cannot be read: {plain(error)}"


def _first_found(searches):
    for search in searches:
        # An error without place on the way to the record is that which is explained.
        with contextlib.suppress(tf.errors.OpError):
            found = search()
            if found is not None:
                return found
    return None
