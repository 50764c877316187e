"""Checks of arguments: one rule for each kind, wherever it is asked for."""

import numbers
import sys


def check_fraction(name, value):
    """Returns `value` as a float if it lies in (0, 1], else raises `ValueError`."""
    if not _is_real(value) or not 0 < value <= 1:
        raise ValueError(
            f"`{name}` must lie in (0, 1]; it is the weight of the new value. "
            f"Received: {name}={value!r}."
        )
    return float(value)


def check_non_negative(name, value):
    """Returns `value` as a float if it is finite and >= 0, else raises `ValueError`."""
    # An int may be finite and beyond all floats.
    if not _is_real(value) or not 0 <= value <= sys.float_info.max:
        raise ValueError(
            f"`{name}` must be a finite number >= 0. Received: {name}={value!r}."
        )
    return float(value)


def check_jitter(jitter, max_iter):
    """Returns `jitter` as an int if it lies in [0, max_iter), else raises
    `ValueError`."""
    is_int = isinstance(jitter, numbers.Integral) and not isinstance(jitter, bool)
    if not is_int or not 0 <= jitter < max_iter:
        raise ValueError(
            "`max_iter_jitter` must be an int >= 0 and less than `max_iter`: the "
            "budgets of training are drawn from max_iter - max_iter_jitter to "
            f"max_iter. Received: max_iter_jitter={jitter!r}, max_iter={max_iter}."
        )
    return int(jitter)


def check_count(name, value):
    """Returns `value` as an int if it is an integer >= 1, else raises `ValueError`."""
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or value < 1:
        raise ValueError(
            f"`{name}` must be an int of at least 1. Received: {name}={value!r}."
        )
    return int(value)


def check_not_renamed(arguments, **names):
    """Raises `ValueError` if the arguments have one that has another name now.

    Args:
        arguments: dict of keyword arguments.
        **names: the new name of each old one.
    """
    for old, new in names.items():
        if old in arguments:
            raise ValueError(
                f"The argument `{old}` is called `{new}` now. "
                f"Received: {old}={arguments[old]!r}."
            )


def _is_real(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
