"""Arguments of the reference's constructors (PyTorch, locuslab/deq) and their kinds."""

import difflib
import numbers
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

# Arguments of the loading functions that are not part of the architecture.
_OF_LOADING = ("solver", "gradient", "regularizer", "dtype")
_LARGEST = 10**6
_DTYPES = ("float16", "bfloat16", "float32", "float64")


class Kind(NamedTuple):
    """The valid values of an argument.

    Attributes:
        words: String. Description of the expected value.
        accepts: Function that returns whether a value is valid.
    """

    words: str
    accepts: Callable[[Any], bool]


def integer(minimum, maximum=_LARGEST):
    """Returns the `Kind` of integers from `minimum` to `maximum`."""
    return Kind(
        f"an integer from {minimum} to {maximum}",
        lambda value: _is_integer(value) and minimum <= value <= maximum,
    )


def list_of(kind):
    """Returns the `Kind` of lists and tuples whose elements have another kind."""
    return Kind(
        f"a list, and each of its elements {kind.words}",
        lambda value: isinstance(value, list | tuple) and all(map(kind.accepts, value)),
    )


# A size that the weights determine. The reference also accepts -1 for it.
SIZE = Kind(
    f"an integer from 1 to {_LARGEST}, or -1 for what the weights say",
    lambda value: _is_integer(value) and (value == -1 or 1 <= value <= _LARGEST),
)
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool | np.bool_))
RATE = Kind(
    "a number of at least 0 and less than 1",
    lambda value: _is_number(value) and 0 <= value < 1,
)
FACTOR = Kind(
    "a number above 0 and at most 1000",
    lambda value: _is_number(value) and 0 < value <= 1000,
)
TEXT = Kind("a text", lambda value: isinstance(value, str))


def checked(architecture, kinds, others=()):
    """Checks the arguments of an architecture and drops arguments that are `None`.

    Args:
        architecture: Dict of arguments.
        kinds: Dict from all known names to a `Kind`.
        others: List of strings. Further argument names of the loading function, for the
            hint. Defaults to `()`.

    Raises:
        ValueError: If an argument is unknown or not of its kind.
    """
    for name, value in architecture.items():
        if name not in kinds:
            raise ValueError(_unknown(name, kinds, others))
        if value is not None:
            check(name, value, kinds[name])
    return {name: value for name, value in architecture.items() if value is not None}


def check(name, value, kind):
    """Raises `ValueError` if an argument is not of its kind."""
    if not kind.accepts(value):
        raise ValueError(
            f"`{name}` must be {kind.words}. Received: {name}={reprlib.repr(value)}."
        )


def check_dtype(dtype):
    """Raises `ValueError` unless a dtype or policy has floating-point weights."""
    try:
        variable_dtype = keras.dtype_policies.get(dtype).variable_dtype
    except (AttributeError, TypeError, ValueError):
        variable_dtype = None
    if variable_dtype not in _DTYPES:
        raise ValueError(
            f"`dtype` must be one of {list(_DTYPES)}, a policy such as mixed_bfloat16 "
            f"or None, Keras' own. Received: dtype={reprlib.repr(dtype)}."
        )


def _is_integer(value):
    is_boolean = isinstance(value, bool | np.bool_)
    return isinstance(value, numbers.Integral) and not is_boolean


def _is_number(value):
    return _is_integer(value) or isinstance(value, float | np.floating)


def _unknown(name, kinds, others):
    names = [*kinds, *_OF_LOADING, *others]
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    return (
        f"Unknown argument `{name}`.{hint} The architecture takes: "
        f"{', '.join(sorted(kinds))}."
    )
