"""The one rule at the door for all that a config may hold, whatever it means.

A config is a plain tree: mappings with text as keys, lists, text, booleans, finite
numbers and null. Depth, size and length are bounded, so that nothing behind the door
meets a recursion, an overflow, or a message of megabytes.
"""

import itertools
import math
import unicodedata

from ..errors import InputError
from .refusal import fail, join, place, shortened

MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_TEXT = 4096  # Maximum length of a path.
MAX_KEY = 200
_MAX_INTEGER = 2**63 - 1


def plain(tree):
    """Returns a copy of a tree in which no two places share a list or a mapping.

    Raises:
        InputError: for what a config cannot hold, with its dotted path.
    """
    return _plain(tree, "", 0, itertools.count(1))


def _plain(value, path, depth, counter):
    if depth > MAX_DEPTH:
        raise InputError(
            f"{place(path)} is nested more than {MAX_DEPTH} levels deep. Nothing in a "
            "config is; does it hold itself, by an anchor (&) and an alias (*)?"
        )
    if next(counter) > MAX_VALUES:
        raise InputError(
            f"The config holds more than {MAX_VALUES} values, with every alias (*) "
            "counted as what it stands for. Leave out what has its default."
        )
    if isinstance(value, dict):
        return {
            _key(key, path): _plain(part, join(path, key), depth + 1, counter)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [
            _plain(part, join(path, index), depth + 1, counter)
            for index, part in enumerate(value)
        ]
    _check_leaf(value, path)
    return value


def _key(key, path):
    if type(key) is str and 1 <= len(key) <= MAX_KEY:
        _check_characters(key, path)
        return key
    raise InputError(
        f"{place(path)} must be a mapping whose keys are text of 1 to {MAX_KEY} "
        f"characters. Put a number in quotes. Received: key={shortened(key)}."
    )


def _check_leaf(value, path):
    kind = type(value)
    if kind is str:
        if len(value) > MAX_TEXT:
            fail(path, f"text of at most {MAX_TEXT} characters", value)
        _check_characters(value, path)
    elif kind is int:
        if abs(value) > _MAX_INTEGER:
            fail(path, "an integer of at most 63 bits", value)
    elif kind is float:
        if not math.isfinite(value):
            fail(path, "a finite number", value)
    elif kind is not bool and value is not None:
        expected = "text, a number, a boolean, null, a list or a mapping"
        fail(path, f"{expected}, not of type {kind.__name__}", value)


def _check_characters(text, path):
    """Control characters and halves of surrogate pairs are in no name and no path."""
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        expected = "text of one line, without control characters or lone surrogates"
        fail(path, expected, text)
