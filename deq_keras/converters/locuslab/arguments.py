"""Checks of the arguments of the reference's constructors (PyTorch, locuslab/deq)."""

import functools
import numbers
import reprlib

import keras

from deq_keras.core.checks import check_integer, check_positive, did_you_mean

# Arguments of the loading functions that are not part of the architecture.
_OF_LOADING = ("solver", "gradient", "regularizer", "dtype")
_LARGEST = 10**6
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def integer(minimum, maximum=_LARGEST):
    """Returns the check of integers from `minimum` to `maximum`."""
    return functools.partial(check_integer, minimum=minimum, maximum=maximum)


check_count = integer(1)


def list_of(check):
    """Returns the check of lists and tuples whose elements pass another check."""

    def check_list(name, value):
        if not isinstance(value, list | tuple):
            raise ValueError(
                f"`{name}` must be a list. Received: {name}={reprlib.repr(value)}."
            )
        for index, one in enumerate(value):
            check(f"{name}[{index}]", one)

    return check_list


def check_size(name, value):
    """Checks a size that the weights determine: the reference accepts -1 for it."""
    if not (isinstance(value, numbers.Integral) and value == -1):
        check_integer(name, value, 1, _LARGEST)


def check_factor(name, value):
    """Checks a positive number of at most 1000."""
    if check_positive(name, value) > 1000:
        raise ValueError(f"`{name}` must be at most 1000. Received: {name}={value!r}.")


def check_text(name, value):
    """Checks a string."""
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a text. Received: {name}={value!r}.")


def checked(architecture, checks, others=()):
    """Checks the arguments of an architecture and drops arguments that are `None`.

    Args:
        architecture: Dict of arguments.
        checks: Dict from all known names to a check of `(name, value)`.
        others: List of strings. Further argument names of the loading function, for the
            hint. Defaults to `()`.

    Raises:
        ValueError: If an argument is unknown or does not pass its check.
    """
    for name, value in architecture.items():
        if name not in checks:
            raise ValueError(_unknown(name, checks, others))
        if value is not None:
            checks[name](name, value)
    return {name: value for name, value in architecture.items() if value is not None}


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


def _unknown(name, checks, others):
    names = [*checks, *_OF_LOADING, *others]
    return (
        f"Unknown argument `{name}`.{did_you_mean(name.lower(), names)} The "
        f"architecture takes: {', '.join(sorted(checks))}."
    )
