"""Reads YAML text as plain trees, and writes it.

A plain tree consists of mappings with strings as keys, lists, strings, Booleans, finite
numbers and null. Its depth, its size and the length of strings are limited, so that
later code needs no protection against recursion, overflow or messages of megabytes.
"""

import itertools
import math
import re
import unicodedata

import yaml
from yaml.constructor import ConstructorError

from ..errors import InputError
from .errors import fail, join, place

MAX_KEY = 200
_MAX_DEPTH = 32
_MAX_VALUES = 10_000
_MAX_TEXT = 4096  # Maximum length of a path.
_MAX_MESSAGE = 300

# YAML 1.1 requires a dot and a signed exponent in a float; other formats do not.
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Safe YAML without repeated keys."""

    def construct_mapping(self, node, deep=False):
        mapping = super().construct_mapping(node, deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            if key in seen:
                problem = f"the key `{key}` is given twice"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `_Loader` would read as another type."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789")


def parse(text):
    """Returns the plain tree of a YAML document.

    Raises:
        InputError: If it is invalid YAML or not a plain tree. Names the line if known.
    """
    try:
        return plain(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        words = ", ".join(filter(None, (error.context, error.problem)))[:_MAX_MESSAGE]
        raise InputError(
            f"line {mark.line + 1}, column {mark.column + 1}: {words}."
        ) from error
    except yaml.YAMLError as error:
        raise InputError(str(error).partition("\n")[0]) from error
    except RecursionError as error:
        raise InputError(f"it is nested more than {_MAX_DEPTH} levels deep.") from error
    except InputError:
        raise
    # Python's errors for a value such as `!!int abc`, or a date without such a day.
    except (ArithmeticError, LookupError, ValueError) as error:
        raise InputError(
            f"a value is not of the type that it looks like ({error}). If it is text, "
            "put it in quotes."
        ) from error


def dump(tree):
    """Returns the YAML text of a plain tree, which `parse` reads."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def plain(tree):
    """Returns a copy of a tree in which no two places share a list or a mapping.

    Raises:
        InputError: If it is not a plain tree. Names the dotted path.
    """
    return _plain(tree, "", 0, itertools.count(1))


def _plain(value, path, depth, counter):
    if depth > _MAX_DEPTH:
        raise InputError(
            f"{place(path)} is nested more than {_MAX_DEPTH} levels deep. Nothing in a "
            "config is; does it hold itself, by an anchor (&) and an alias (*)?"
        )
    if next(counter) > _MAX_VALUES:
        raise InputError(
            f"The config holds more than {_MAX_VALUES} values, with every alias (*) "
            "counted as what it stands for. Leave out what has its default."
        )
    if isinstance(value, dict):
        for key in value:
            if not _is_text(key, MAX_KEY) or not key:
                expected = f"text of 1 to {MAX_KEY} characters, a number in quotes"
                fail(path, f"a mapping whose keys are {expected}", key)
        return {
            key: _plain(part, join(path, key), depth + 1, counter)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [
            _plain(part, join(path, index), depth + 1, counter)
            for index, part in enumerate(value)
        ]
    if isinstance(value, str) and not _is_text(value, _MAX_TEXT):
        expected = "without control characters or lone surrogates"
        fail(path, f"text of at most {_MAX_TEXT} characters, {expected}", value)
    if isinstance(value, float) and not math.isfinite(value):
        fail(path, "a finite number", value)
    if isinstance(value, int) and abs(value) >= 2**63:
        fail(path, "an integer of at most 63 bits", value)
    if value is not None and not isinstance(value, str | int | float):
        expected = "text, a number, a boolean, null, a list or a mapping"
        fail(path, f"{expected}, not of type {type(value).__name__}", value)
    return value


def _is_text(value, length):
    """Returns whether a value is a short string without odd characters."""
    return (
        isinstance(value, str)
        and len(value) <= length
        and not any(unicodedata.category(one) in ("Cc", "Cs") for one in value)
    )
