"""Checks numbers, text and booleans against a type hint and a field's metadata."""

import re

from .plain_tree import MAX_TEXT
from .refusal import closest, fail

# Behind a config, integers become int32 tensors, and numbers float32 ones that are
# squared and multiplied.
_LARGEST = {int: 2**31 - 1, float: 1e18}
_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string that is not empty",
    bool: "a boolean",
}


def checked_scalar(value, hint, metadata, path):
    """Returns `value` as `hint`, or raises `InputError` with its dotted path.

    Args:
        value: anything.
        hint: `int`, `float`, `str` or `bool`.
        metadata: dict that may have `minimum`, `maximum`, `above` (an excluded
            minimum), and for text `max_length`.
        path: str.
    """
    if hint is float and _is_number(value):
        value = float(value)
    if type(value) is not hint or not _is_within(value, hint, metadata):
        fail(path, _description(value, hint, metadata), value)
    return value


def check_size(value, metadata, path):
    """Raises `InputError` if `value` is a number, and too large for one."""
    if _is_number(value) and abs(value) > _maximum(type(value), metadata):
        fail(path, f"a number <= {_maximum(type(value), metadata)}", value)


def checked_choice(value, choices, path):
    """Returns `value` if it is one of the choices, or raises `InputError`.

    Args:
        value: anything.
        choices: tuple of text and booleans.
        path: str.
    """
    # 1 equals True.
    if not any(type(value) is type(one) and value == one for one in choices):
        words = [one for one in choices if isinstance(one, str)]
        fail(path, f"one of {list(choices)}", value, closest(value, words))
    return value


def check_name(name, metadata, path):
    """Raises `InputError` if a name does not match `pattern`, or is too long."""
    pattern, length = metadata.get("pattern", ".*"), metadata.get("max_length", 200)
    if not re.fullmatch(pattern, name) or len(name) > length:
        expected = f"a mapping whose keys match {pattern} with at most {length}"
        fail(path, f"{expected} characters", name)


def _is_number(value):
    return type(value) in (int, float)


def _is_within(value, hint, metadata):
    if hint is str:
        return bool(value.strip()) and len(value) <= metadata.get(
            "max_length", MAX_TEXT
        )
    if hint is bool:
        return True
    return metadata.get("minimum", -_LARGEST[hint]) <= value <= _maximum(
        hint, metadata
    ) and value > metadata.get("above", -float("inf"))


def _maximum(kind, metadata):
    return metadata.get("maximum", _LARGEST[kind])


def _description(value, hint, metadata):
    bounds = {name: metadata.get(name) for name in ("minimum", "above", "maximum")}
    if type(value) is hint and hint in _LARGEST and abs(value) > _LARGEST[hint]:
        bounds["maximum"] = _maximum(hint, metadata)
    signs = {"minimum": ">=", "above": ">", "maximum": "<="}
    limits = [
        f"{signs[name]} {bound}" for name, bound in bounds.items() if bound is not None
    ]
    text = " ".join([_WORDS[hint], " and ".join(limits)]).strip()
    if "max_length" in metadata:
        text += f" of at most {metadata['max_length']} characters"
    return f"{text}, or null" if metadata.get("optional") else text
