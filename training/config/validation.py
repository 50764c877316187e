"""Turns plain mappings, as YAML gives them, into dataclasses, and says what is wrong.

A field's type hint says what is expected; its `metadata` may add

- of numbers: `minimum`, `maximum`, `above` (an excluded minimum),
- of text: `max_length`,
- of lists and mappings: `non_empty`, `max_items`; of lists `num_items`, `distinct`; of
  mappings' keys `pattern` and `max_length`,
- of objects: `component`, see `training.config.component_validation`.
"""

import dataclasses
import functools
import types
import typing

from ..errors import InputError
from .component_validation import checked_component
from .refusal import closest, fail, join, place
from .scalar_validation import check_name, checked_choice, checked_scalar

# Each element costs a model, a graph or a file.
_MAX_ITEMS = 256


def from_mapping(cls, mapping, path=""):
    """Returns an instance of a dataclass from a mapping of its fields.

    Args:
        cls: a dataclass; its fields may be dataclasses or lists of them.
        mapping: dict, a plain tree. Fields that are left out take their defaults.
        path: String. Path of the mapping in the config, for messages.

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
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _checked(
                mapping[name], hints[name], field.metadata, join(path, name)
            )
        elif _is_required(field):
            raise InputError(f"`{join(path, name)}` is required and is missing.")
    return cls(**values)


@functools.cache
def _hints(cls):
    return typing.get_type_hints(cls)


def _checked(value, hint, metadata, path):
    if "component" in metadata:
        return checked_component(value, metadata, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _checked_union(value, arguments, metadata, path)
    if origin is typing.Literal:
        return checked_choice(value, arguments, path)
    if origin is list:
        return _checked_list(value, arguments[0], metadata, path)
    if origin is dict:
        return _checked_dict(value, metadata, path)
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, path)
    return checked_scalar(value, hint, metadata, path)


def _checked_union(value, options, metadata, path):
    """A union is `X | None`, or of dataclasses that the key `name` chooses from."""
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
    checked_choice(name, tuple(by_name), join(path, "name"))
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
        check_name(key, metadata, path)
    # They name folders, and there are file systems that do not tell such apart.
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


def _is_required(field):
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _unknown_key(key, fields, path):
    hint = closest(key, fields)
    if hint and path:
        hint = hint.replace("`", f"`{path}.", 1)
    return (
        f"Unknown key {place(join(path, key))}.{hint} {place(path)} takes: "
        f"{', '.join(fields)}."
    )
