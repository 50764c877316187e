"""Converts plain mappings to dataclasses, with errors that name the path of a value.

The type hint of a field is its expected type. Its `metadata` may contain:

* numbers: `minimum`, `maximum`, `above` (an excluded minimum),
* strings: `max_length`,
* lists and mappings: `non_empty` and `max_items`; lists also `num_items` and
  `distinct`; mappings also `pattern` and `max_length` of their keys,
* a solver, gradient, regularizer, initial state or cell: `component`, a tuple of its
  possible names; `plug_ins`, whether registered names `package>Class` are possible
  too; `alone`, the names that take no arguments; and `nullable`. The object checks its
  arguments when it is built; only numbers are checked here, see `MAXIMA`.
"""

import dataclasses
import functools
import re
import types
import typing

from ..errors import InputError
from .component_fields import MAXIMA, normalized
from .errors import closest, fail, join, place, shortened
from .sanitize import MAX_TEXT

# Integers become int32 tensors, and numbers become float32 tensors that are squared.
_LARGEST = {int: 2**31 - 1, float: 1e18}
_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string that is not empty",
    bool: "a boolean",
}
_MISSING = dataclasses.MISSING
# Each element costs a model, a graph or a file.
_MAX_ITEMS = 256


def from_mapping(cls, mapping, path="", default=None):
    """Returns an instance of a dataclass from a mapping of its fields.

    Args:
        cls: a dataclass; its fields may be dataclasses or lists of them.
        mapping: Dict, a plain tree. Missing fields have their defaults.
        path: String. Path of the mapping in the config, for messages.
        default: Instance of the dataclass with the values of missing fields. Defaults
            to `None`, the defaults of the fields.

    Raises:
        InputError: for an unknown or missing key and for a value of the wrong type or
            range, with the dotted path, what was expected and what was received.
    """
    if not isinstance(mapping, dict):
        fail(path, "a mapping", mapping)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in mapping:
        if key not in fields:
            raise InputError(_unknown_key(key, fields, path))
    hints = _hints(cls)
    values = {} if type(default) is not cls else dict(vars(default))
    for name, field in fields.items():
        if name in mapping and dataclasses.is_dataclass(hints[name]):
            values[name] = from_mapping(
                hints[name], mapping[name], join(path, name), field.default
            )
        elif name in mapping:
            values[name] = _checked(
                mapping[name], hints[name], field.metadata, join(path, name)
            )
        elif name not in values and field.default is field.default_factory is _MISSING:
            raise InputError(f"`{join(path, name)}` is required and is missing.")
    return cls(**values)


@functools.cache
def _hints(cls):
    return typing.get_type_hints(cls)


def _checked(value, hint, metadata, path):
    if "component" in metadata:
        return _checked_component(value, metadata, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _checked_union(value, arguments, metadata, path)
    if origin is typing.Literal:
        return _checked_choice(value, arguments, path)
    if origin is list:
        return _checked_list(value, arguments[0], metadata, path)
    if origin is dict:
        return _checked_dict(value, metadata, path)
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, path)  # An element of a list.
    return _checked_scalar(value, hint, metadata, path)


def _checked_union(value, options, metadata, path):
    """Checks a union: `X | None`, or dataclasses that the key `name` selects."""
    if type(None) not in options:
        return _chosen_by_name(value, options, path)
    if value is None:
        return None
    (option,) = (option for option in options if option is not type(None))
    return _checked(value, option, {**metadata, "optional": True}, path)


def _chosen_by_name(value, options, path):
    """Returns the dataclass with the `name` of a mapping; by default the first one."""
    if not isinstance(value, dict):
        fail(path, "a mapping", value)
    by_name = {typing.get_args(_hints(cls)["name"])[0]: cls for cls in options}
    name = value.get("name", next(iter(by_name)))
    _checked_choice(name, tuple(by_name), join(path, "name"))
    return from_mapping(by_name[name], value, path)


def _checked_list(value, element, metadata, path):
    if not isinstance(value, list):
        fail(path, "a list", value)
    _check_length(value, "a list", "element", metadata, path)
    items = [
        _checked(item, element, metadata, join(path, index))
        for index, item in enumerate(value)
    ]
    if metadata.get("distinct") and len(set(items)) < len(items):
        fail(path, "a list without repetitions", value)
    return items


def _checked_dict(value, metadata, path):
    if not isinstance(value, dict):
        fail(path, "a mapping", value)
    _check_length(value, "a mapping", "entry", metadata, path)
    for key in value:
        _check_name(key, metadata, path)
    # The keys name folders, and some file systems ignore upper and lower case.
    if len({key.lower() for key in value}) < len(value):
        fail(path, "a mapping whose keys differ in more than their case", list(value))
    return value


def _check_length(value, kind, element, metadata, path):
    if metadata.get("non_empty") and not value:
        fail(path, f"{kind} of at least one {element}", value)
    if len(value) != metadata.get("num_items", len(value)):
        fail(path, f"{kind} of {metadata['num_items']} {element}s", value)
    most = metadata.get("max_items", _MAX_ITEMS)
    if len(value) > most:
        raise InputError(
            f"{place(path)} must be {kind} of at most {most} items. "
            f"Received: {len(value)} items."
        )


def _unknown_key(key, fields, path):
    hint = closest(key, fields)
    if hint and path:
        hint = hint.replace("`", f"`{path}.", 1)
    return (
        f"Unknown key {place(join(path, key))}.{hint} {place(path)} takes: "
        f"{', '.join(fields)}."
    )


def _checked_component(value, metadata, path):
    """Returns `value`, or raises `InputError` with its dotted path."""
    alone = metadata.get("alone", ())
    if (value is None and metadata["nullable"]) or value in alone:
        return value
    names = metadata["component"]
    if isinstance(value, dict) and "class_name" not in value:
        raise InputError(
            f"`{path}` must name its class. Expected: {{class_name: one of "
            f"{list(names)}, then its arguments}}. Received: {shortened(value)}."
        )
    name = value["class_name"] if isinstance(value, dict) else value
    if not isinstance(name, str) or not _is_possible(name, metadata):
        expected = f"one of {list(names)}, alone or as `class_name` with arguments"
        if metadata.get("plug_ins"):
            expected += ", or package>Class of a module in `imports`"
        expected += "".join(f", or {word!r} alone" for word in alone)
        hint = "" if name in alone else closest(name, (*names, *alone))
        fail(path, expected, value, hint)
    if isinstance(value, dict):
        _check_sizes(value, path)
    return value


def _is_possible(name, metadata):
    if metadata.get("plug_ins") and re.fullmatch(r"[^>\s]+>[^>\s]+", name):
        return True
    return normalized(name) in map(normalized, metadata["component"])


def _check_sizes(value, path, maximum=None):
    """Raises `InputError` if a number in the arguments of a component is too large.

    It would make tensors, graphs or files too large while the component is built.
    """
    if isinstance(value, dict):
        for name, part in value.items():
            _check_sizes(part, join(path, name), MAXIMA.get(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_sizes(item, join(path, index), maximum)
    elif type(value) in _LARGEST:
        maximum = _LARGEST[type(value)] if maximum is None else maximum
        if abs(value) > maximum:
            fail(path, f"a number <= {maximum}", value)


def _checked_scalar(value, hint, metadata, path):
    """Returns `value` as an `int`, `float`, `str` or `bool`."""
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint or not _is_within(value, hint, metadata):
        fail(path, _description(value, hint, metadata), value)
    return value


def _checked_choice(value, choices, path):
    """Returns `value` if it is one of the choices, a tuple of strings and Booleans."""
    # 1 equals True.
    if not any(type(value) is type(one) and value == one for one in choices):
        words = [one for one in choices if isinstance(one, str)]
        fail(path, f"one of {list(choices)}", value, closest(value, words))
    return value


def _check_name(name, metadata, path):
    """Raises `InputError` if a name does not match `pattern`, or is too long."""
    pattern, length = metadata.get("pattern", ".*"), metadata.get("max_length", 200)
    if not re.fullmatch(pattern, name) or len(name) > length:
        expected = f"a mapping whose keys match {pattern} with at most {length}"
        fail(path, f"{expected} characters", name)


def _is_within(value, hint, metadata):
    if hint is str:
        longest = metadata.get("max_length", MAX_TEXT)
        return bool(value.strip()) and len(value) <= longest
    if hint is bool:
        return True
    least, most = _range(hint, metadata)
    return least <= value <= most and value > metadata.get("above", -float("inf"))


def _range(hint, metadata):
    largest = _LARGEST[hint]
    return metadata.get("minimum", -largest), metadata.get("maximum", largest)


def _description(value, hint, metadata):
    bounds = {name: metadata.get(name) for name in ("minimum", "above", "maximum")}
    if type(value) is hint and hint in _LARGEST and abs(value) > _LARGEST[hint]:
        _, bounds["maximum"] = _range(hint, metadata)
    signs = {"minimum": ">=", "above": ">", "maximum": "<="}
    limits = [
        f"{signs[name]} {bound}" for name, bound in bounds.items() if bound is not None
    ]
    text = " ".join([_WORDS[hint], " and ".join(limits)]).strip()
    if "max_length" in metadata:
        text += f" of at most {metadata['max_length']} characters"
    return f"{text}, or null" if metadata.get("optional") else text
