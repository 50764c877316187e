"""The base class of all config sections, and the messages of their errors."""

import functools

import pydantic

from ..errors import InputError
from .errors import closest, join, place, received_text
from .keys import check_sizes

_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "component": "a component, alone or as `class_name` with arguments",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "a mapping",
    "result": "a number or text",
    "string": "a string",
}
_LIMITS = {"exclusiveMinimum": ">", "minimum": ">=", "maximum": "<="}
_SIZES = {"Items": "elements", "Length": "characters", "Properties": "keys"}


class Config(pydantic.BaseModel):
    """A section of a config. Unknown keys raise, and its values are constant."""

    model_config = pydantic.ConfigDict(
        allow_inf_nan=False, extra="forbid", frozen=True, strict=True
    )


def validate(cls, mapping):
    """Returns the `Config` of a class from a plain mapping.

    Raises:
        InputError: For an unknown or missing key and for an invalid value, with the
            dotted path, what was expected and what was received.
    """
    check_sizes(mapping)
    try:
        return cls.model_validate(mapping)
    except pydantic.ValidationError as error:
        raise InputError(_message(error.errors(include_url=False), cls)) from None


def describe(schema):
    """Returns the values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        return ", or ".join(map(describe, schema["anyOf"]))
    if "enum" in schema:
        return f"one of {', '.join(map(_yaml, schema['enum']))}"
    if "const" in schema:
        return _yaml(schema["const"])
    kind = "object" if {"$ref", "oneOf"} & schema.keys() else schema["type"]
    limits = [f"{sign} {schema[key]}" for key, sign in _LIMITS.items() if key in schema]
    text = f"{_KINDS[kind]} {' and '.join(limits)}".rstrip()
    for key, unit in _SIZES.items():
        if f"max{key}" in schema:
            fewest, most = schema.get(f"min{key}", 0), schema[f"max{key}"]
            text += f" of {most if fewest == most else f'{fewest} to {most}'} {unit}"
    return f"{text}, each {describe(schema['items'])}" if kind == "array" else text


def _yaml(value):
    return str(value).lower() if isinstance(value, bool) else value


def _message(errors, cls):
    """Returns the message of one of pydantic's errors."""
    # An unknown key is often a missing one, misspelled.
    error = min(errors, key=lambda one: one["type"] == "missing")
    kind, value = error["type"], error["input"]
    path, schema, known = _find(error["loc"], cls)
    if kind == "missing":
        return f"{place(path)} is required and is missing."
    if kind == "extra_forbidden":
        return _unknown_key(path, error["loc"][-1], known)
    if kind == "union_tag_invalid":
        path, value = join(path, "name"), value["name"]
        schema = {"enum": list(schema["discriminator"]["mapping"])}
    text = describe(schema)
    if kind == "value_error":  # Raised by a function of ours.
        cause = error["ctx"]["error"]
        if isinstance(cause, InputError):
            return str(cause)
        text = str(cause) or text
    names = [name for name in schema.get("enum", ()) if isinstance(name, str)]
    hint = closest(value, names)
    return f"{place(path)} must be {text}. {received_text(path, value)}{hint}"


@functools.cache
def _schema(cls):
    return cls.model_json_schema()


def _find(location, cls):
    """Returns the dotted path and the schema of a location, and the keys beside it."""
    root = schema = _schema(cls)
    path, known = "", {}
    for part in location:
        schema = schema.get("anyOf", [schema])[0]  # The other option is null.
        if "discriminator" in schema:
            # Pydantic also names the alternative of a union.
            schema = {"$ref": schema["discriminator"]["mapping"][part]}
            continue
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        path, known = join(path, part), schema.get("properties", {})
        others = schema.get("items") or schema.get("additionalProperties")
        schema = known.get(part, others)
    return path, schema, known


def _unknown_key(path, key, known):
    parent = path.removesuffix(key).removesuffix(".")
    hint = closest(key, known)
    if hint and parent:
        hint = hint.replace("`", f"`{parent}.", 1)
    names = ", ".join(known)
    return f"Unknown key {place(path)}.{hint} {place(parent)} takes: {names}."
