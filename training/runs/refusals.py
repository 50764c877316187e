"""Says what a model, or a part of one, refuses while it is built."""

import contextlib

import tensorflow as tf

from ..errors import InputError

_LONGEST_REASON = 600


@contextlib.contextmanager
def refusals(path):
    """Raises what the code in it raises as an `InputError` that names `path`.

    A config is only then known to be one when everything has been made of it: objects
    and layers check their own arguments, in errors of their own.
    """
    try:
        yield
    except InputError:
        raise
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        raise InputError(
            f"`{path}` needs more memory than there is. Take smaller sizes, such as "
            f"fewer filters or units. ({_reason(error)})"
        ) from error
    except (ArithmeticError, TypeError, ValueError, tf.errors.OpError) as error:
        raise InputError(f"`{path}`: {_reason(error)}") from error


def _reason(error):
    """Returns the message of an error in one line."""
    # An operation that runs eagerly puts its name, {{...}}, before what it says.
    text = " ".join(str(error).rpartition("}}")[2].split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
