"""Checks of arguments, with one function for each kind of value.

Every function takes the name of an argument, for its message, and the value. It returns
the value as a plain Python object, so that it accepts NumPy's numbers and configs can
be written as JSON. It raises `ValueError` if the value is of another kind.
"""

import difflib
import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np


def check_count(name: str, value: Any) -> int:
    """Returns a positive integer."""
    if not _is_integer(value) or value < 1:
        raise ValueError(_message(name, value, "a positive integer"))
    return int(value)


def check_optional_count(name: str, value: Any) -> int | None:
    """Returns a positive integer, or `None`."""
    if value is not None and (not _is_integer(value) or value < 1):
        raise ValueError(_message(name, value, "a positive integer or None"))
    return None if value is None else int(value)


def check_counts(name: str, value: Any, allow_empty: bool = False) -> tuple[int, ...]:
    """Returns a tuple of positive integers, given a list or a tuple of them."""
    is_sequence = isinstance(value, list | tuple) and (value or allow_empty)
    if not is_sequence or not all(_is_integer(one) and one >= 1 for one in value):
        raise ValueError(_message(name, value, "a tuple of positive integers"))
    return tuple(map(int, value))


def check_sizes(name: str, value: Any, axes: str = "") -> tuple[int | None, ...]:
    """Returns a tuple of sizes: positive integers, or `None` for an axis that varies.

    Args:
        name: String. Name of the argument.
        value: List or tuple.
        axes: String. Names of the axes, such as `"height, width"`. Defaults to `""`,
            any number of axes.
    """
    is_sequence = isinstance(value, list | tuple) and len(value) > 0
    if not is_sequence or (axes and len(value) != len(axes.split(", "))):
        kinds = f"({axes})" if axes else "of positive integers and None"
        raise ValueError(_message(name, value, f"a tuple {kinds}"))
    return tuple(
        check_optional_count(f"{name}[{axis}]", size) for axis, size in enumerate(value)
    )


def check_integer(
    name: str, value: Any, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Returns an integer from `minimum` to `maximum`, inclusive."""
    is_low = minimum is not None and _is_integer(value) and value < minimum
    is_high = maximum is not None and _is_integer(value) and value > maximum
    if not _is_integer(value) or is_low or is_high:
        expected = "an integer" + _range(minimum, maximum)
        raise ValueError(_message(name, value, expected))
    return int(value)


def check_seed(name: str, value: Any) -> int | None:
    """Returns an integer of 64 bits, or `None` for a random seed."""
    if value is not None and not (_is_integer(value) and -(2**63) <= value < 2**63):
        raise ValueError(_message(name, value, "an integer of 64 bits or None"))
    return None if value is None else int(value)


def check_positive_fraction(name: str, value: Any) -> float:
    """Returns a float in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:
        raise ValueError(_message(name, value, "a number in (0, 1]"))
    return float(value)


def check_open_fraction(name: str, value: Any) -> float:
    """Returns a float in (0, 1)."""
    if not _is_real(value) or not 0 < value < 1:
        raise ValueError(_message(name, value, "a number in (0, 1)"))
    return float(value)


def check_rate(name: str, value: Any) -> float:
    """Returns a float in [0, 1), such as a dropout rate."""
    if not _is_real(value) or not 0 <= value < 1:
        raise ValueError(_message(name, value, "a number in [0, 1)"))
    return float(value)


def check_fraction(name: str, value: Any) -> float:
    """Returns a float in [0, 1]."""
    if not _is_real(value) or not 0 <= value <= 1:
        raise ValueError(_message(name, value, "a number in [0, 1]"))
    return float(value)


def check_non_negative(name: str, value: Any) -> float:
    """Returns a finite float >= 0."""
    if not is_finite_number(value) or value < 0:
        raise ValueError(_message(name, value, "a finite number >= 0"))
    return float(value)


def check_positive(name: str, value: Any) -> float:
    """Returns a finite float > 0."""
    if not is_finite_number(value) or value <= 0:
        raise ValueError(_message(name, value, "a finite number > 0"))
    return float(value)


def check_boolean(name: str, value: Any) -> bool:
    """Returns a bool; other truthy values raise."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(_message(name, value, "True or False"))
    return bool(value)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Returns one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        expected = "one of " + ", ".join(map(repr, choices))
        raise ValueError(_message(name, value, expected) + did_you_mean(value, choices))
    return value


def did_you_mean(name: Any, names: Collection[str]) -> str:
    """Returns " Did you mean ...?" for the nearest of `names`, or an empty string."""
    nearest = difflib.get_close_matches(str(name), names, n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _message(name: str, value: Any, expected: str) -> str:
    return f"`{name}` must be {expected}. Received: {name}={value!r}."


def _range(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" >= {minimum}"
    return "" if maximum is None else f" <= {maximum}"


# In Python, a bool is an integer, but a bool as a size or a weight is a mistake.
def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_finite_number(value: Any) -> bool:
    """Returns whether a value is a real number, of Python or NumPy, and finite."""
    try:
        return _is_real(value) and math.isfinite(value)
    except OverflowError:  # An int beyond all floats.
        return False
