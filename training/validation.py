"""Turns plain mappings, as YAML gives them, into dataclasses, and says what is wrong.

A field's type hint says what is expected; its `metadata` may add `minimum`, `maximum`,
`above` (an excluded minimum), `pattern`, `non_empty` or `component`, a tuple of the
names that a solver, gradient, regulariser or cell may have.
"""

import dataclasses
import difflib
import re
import types
import typing

from training.errors import InputError


def from_mapping(cls, mapping, path=""):
    """Returns an instance of a dataclass from a mapping of its fields.

    Args:
        cls: a dataclass; its fields may be dataclasses or lists of them.
        mapping: dict. Fields that are left out take their defaults.
        path: str. Where the mapping stands in the config, for messages.

    Raises:
        InputError: for an unknown or missing key and for a value of the wrong type or
            range, with the dotted path, what was expected and what was received.
    """
    if not isinstance(mapping, dict):
        _fail(path, "a mapping", mapping)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in mapping:
        if key not in fields:
            raise InputError(_unknown_key(key, fields, path))
    hints = typing.get_type_hints(cls)
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _checked(
                mapping[name], hints[name], field.metadata, _join(path, name)
            )
        elif _is_required(field):
            raise InputError(f"`{_join(path, name)}` is required and is missing.")
    return cls(**values)


def closest(name, names):
    """Returns " Did you mean ...?" for the nearest valid name, or nothing."""
    matches = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f" Did you mean `{matches[0]}`?" if matches else ""


def _checked(value, hint, metadata, path):
    if "component" in metadata:
        return _checked_component(value, metadata, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _checked_union(value, arguments, metadata, path)
    if origin is typing.Literal:
        if value not in arguments:
            hint = closest(value, arguments)
            _fail(path, f"one of {list(arguments)}", value, hint)
        return value
    if origin is list:
        return _checked_list(value, arguments[0], metadata, path)
    if origin is dict:
        return _checked_dict(value, metadata, path)
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, path)
    return _checked_scalar(value, hint, metadata, path)


def _checked_union(value, options, metadata, path):
    """Unions are `X | None` only."""
    if value is None:
        return None
    (option,) = (option for option in options if option is not type(None))
    return _checked(value, option, {**metadata, "optional": True}, path)


def _checked_list(value, element, metadata, path):
    if not isinstance(value, list):
        _fail(path, "a list", value)
    if metadata.get("non_empty") and not value:
        _fail(path, "a list of at least one element", value)
    return [
        _checked(item, element, metadata, f"{path}.{index}")
        for index, item in enumerate(value)
    ]


def _checked_dict(value, metadata, path):
    if not isinstance(value, dict):
        _fail(path, "a mapping", value)
    if metadata.get("non_empty") and not value:
        _fail(path, "a mapping of at least one entry", value)
    pattern = metadata.get("pattern", "")
    for key in value:
        if not isinstance(key, str) or not re.fullmatch(pattern, key):
            _fail(path, f"keys that match {pattern}", key)
    return value


def _checked_scalar(value, hint, metadata, path):
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and is_number:
        value = float(value)
    expected = _description(hint, metadata)
    if hint in (int, float):
        is_valid = is_number and isinstance(value, hint)
        is_valid = is_valid and value >= metadata.get("minimum", -float("inf"))
        is_valid = is_valid and value <= metadata.get("maximum", float("inf"))
        is_valid = is_valid and value > metadata.get("above", -float("inf"))
    else:
        is_valid = isinstance(value, hint)
    if not is_valid:
        _fail(path, expected, value)
    return value


def _checked_component(value, metadata, path):
    """Checks the name only: the object itself checks its arguments when it is made."""
    if value is None and metadata["nullable"]:
        return None
    names = metadata["component"]
    if isinstance(value, dict) and "class_name" not in value:
        raise InputError(
            f"`{path}` must name its class. Expected: {{class_name: one of "
            f"{list(names)}, then its arguments}}. Received: {value!r}."
        )
    name = value["class_name"] if isinstance(value, dict) else value
    if not isinstance(name, str) or _plain(name) not in map(_plain, names):
        expected = f"one of {list(names)}, alone or as `class_name` with arguments"
        _fail(path, expected, name, closest(name, names))
    nested = metadata.get("arguments", {})
    if isinstance(value, dict):
        for argument in value.keys() & nested.keys():
            place = _join(path, argument)
            _checked_component(value[argument], nested[argument], place)
    return value


def _plain(name):
    return name.replace("_", "").lower()


def _description(hint, metadata):
    words = {int: "an integer", float: "a number", str: "a string", bool: "a boolean"}
    bounds = {"minimum": ">=", "above": ">", "maximum": "<="}
    limits = [
        f"{sign} {metadata[key]}" for key, sign in bounds.items() if key in metadata
    ]
    text = " ".join([words[hint], " and ".join(limits)]).strip()
    return f"{text}, or null" if metadata.get("optional") else text


def _is_required(field):
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _unknown_key(key, fields, path):
    hint = closest(key, fields)
    if hint and path:
        hint = hint.replace("`", f"`{path}.", 1)
    place = f"`{path}`" if path else "The config"
    return (
        f"Unknown key `{_join(path, key)}`.{hint} {place} takes: {', '.join(fields)}."
    )


def _fail(path, expected, value, hint=""):
    name = path.rpartition(".")[2] or "config"
    place = f"`{path}`" if path else "The config"
    raise InputError(f"{place} must be {expected}. Received: {name}={value!r}.{hint}")


def _join(path, key):
    return f"{path}.{key}" if path else str(key)
