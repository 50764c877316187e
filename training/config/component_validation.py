"""Checks how a config names a solver, gradient, regularizer, initial state or cell.

Names, and the form and size of arguments, in the light of a field's metadata:

- `component`: tuple of the names that the object may have,
- `alone`: names of objects that take no arguments,
- `nullable`: whether there may be none,
- `arguments`: name -> metadata of an argument: a component again; `elements`, the
  metadata of each of a list of components, and its `max_items`; or a `maximum`.

The object itself checks its other arguments when it is built.
"""

from ..errors import InputError
from .refusal import closest, fail, join, received, shortened
from .scalar_validation import check_size


def checked_component(value, metadata, path):
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
    if not isinstance(name, str) or _plain(name) not in map(_plain, names):
        expected = f"one of {list(names)}, alone or as `class_name` with arguments"
        expected += "".join(f", or {word!r} alone" for word in alone)
        hint = "" if name in alone else closest(name, (*names, *alone))
        fail(path, expected, value, hint)
    if isinstance(value, dict):
        _check_arguments(value, metadata.get("arguments", {}), path)
    return value


def _check_arguments(config, arguments, path):
    for name, value in config.items():
        place, metadata = join(path, name), arguments.get(name, {})
        if "component" in metadata:
            checked_component(value, metadata, place)
        elif "elements" in metadata:
            _check_components(value, metadata, place)
        elif isinstance(value, dict):
            raise InputError(
                f"`{place}` must be text, a number, a boolean, null or a list of them. "
                "The arguments of an object stand beside its `class_name`. "
                f"{received(place, value)}"
            )
        else:
            _check_argument(value, metadata, place)


def _check_components(values, metadata, path):
    if not isinstance(values, list) or len(values) > metadata["max_items"]:
        fail(path, f"a list of at most {metadata['max_items']} objects", values)
    for index, value in enumerate(values):
        checked_component(value, metadata["elements"], join(path, index))


def _check_argument(value, metadata, path):
    if not isinstance(value, list):
        check_size(value, metadata, path)
        return
    for index, item in enumerate(value):
        if isinstance(item, dict | list):
            fail(join(path, index), "text, a number, a boolean or null", item)
        check_size(item, metadata, join(path, index))


def _plain(name):
    return name.replace("_", "").lower()
