"""Fills docs/api/config.md with tables of the config keys: a hook of MkDocs.

`python tools/config_reference.py` prints them.
"""

import inspect
import json
import pathlib
import re
import sys
import typing

import deq_keras

# MkDocs does not look for modules in the current folder.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from training import registry  # noqa: E402
from training.config.fields import VariantsConfig  # noqa: E402
from training.config.model import Config, describe  # noqa: E402

_PAGE, _PLACE = "api/config.md", "<!-- tables -->"
_HEAD = "| key | value | default | meaning |\n|---|---|---|---|\n"
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*|\n)*)", re.MULTILINE)
# A type at the beginning of a meaning; the values of a key say more.
_TYPE = re.compile(
    r"((List|Tuple) of )?((positive|non-negative|ascending) )?(odd )?"
    r"(integer|float|boolean|string|path)s?"
    r"( in `?[(\[][^\])]*[\])]`?| >= \d+|, at (least|most) \d+)?(,? or null)?\. ",
    re.IGNORECASE,
)


def on_page_markdown(markdown, *, page, **kwargs):
    """Returns the text of a page. MkDocs calls it for every page."""
    if page.file.src_uri != _PAGE:
        return markdown
    return markdown.replace(_PLACE, tables())


def tables():
    """Returns the headings and tables of all experiments."""
    common = VariantsConfig.model_fields
    parts = [("## Every experiment", VariantsConfig, "", {"model"})]
    for name in registry.names():
        schema = registry.find(name).schema
        hints = {key: one.annotation for key, one in schema.model_fields.items()}
        same = {key for key in common if hints[key] == common[key].annotation}
        parts.append((f"## Experiment `{name}`", schema, "", same))
    text = []
    while parts:
        heading, cls, path, skip = parts.pop(0)
        rows, kinds = [], []
        for row in _rows(cls, path, skip):
            (rows if isinstance(row, str) else kinds).append(row)
        text.append(f"{heading}\n\n{_HEAD}" + "\n".join(rows))
        parts[:0] = kinds
    return "\n\n".join(text)


def _rows(cls, path, skip=()):
    """Yields the rows of a section, and the tables of a key that has several kinds."""
    properties, meanings = cls.model_json_schema()["properties"], descriptions(cls)
    for name, field in cls.model_fields.items():
        if name in skip or "const" in properties[name]:
            continue
        values, default = describe(properties[name]), field.default
        if field.is_required():
            default = "required"
        elif isinstance(default, Config):
            default = ""
        else:
            is_text = isinstance(default, str)
            default = f"`{default if is_text else json.dumps(default)}`"
        yield f"| `{path}{name}` | {values} | {default} | {meanings[name]} |"
        inside = f"{path}{name}." + ("N." if "list" in values else "")
        options = _sections(field.annotation)
        if len(options) == 1:
            yield from _rows(options[0], inside)
            continue
        for one in options:
            kind = one.model_fields["name"].default
            yield f"### `{inside}name: {kind}`", one, inside, ()


def descriptions(cls):
    """Returns a dict of the keys of a section to their meanings.

    In order of precedence: the `Args` of its docstring and of its base classes, the
    `Args` of the classes of `deq_keras.models` whose arguments its docstring mentions,
    and the first sentences of the sections in it.
    """
    meanings = {}
    for name, field in cls.model_fields.items():
        for one in _sections(field.annotation):
            meanings[name] = re.split(r"[;.]", one.__doc__)[0] + "."
    docs = [inspect.getdoc(one) for one in cls.__mro__ if issubclass(one, Config)]
    for doc in reversed(docs):
        if doc.startswith("Arguments of"):
            for name in re.findall(r"`(\w+)`", doc.partition(".")[0]):
                meanings |= _library(name)
    for doc in reversed(docs):
        meanings |= _arguments(doc)
    return meanings


def _library(name):
    """Returns a dict of the arguments of a model or a layer to their meanings."""
    places = (deq_keras.models, deq_keras.layers)
    (cls,) = (getattr(place, name) for place in places if hasattr(place, name))
    return _arguments(inspect.getdoc(cls))


def _arguments(doc):
    """Returns a dict of the entries below `Args:` in a docstring."""
    section = re.split(r"^\S", doc.partition("Args:\n")[2], flags=re.MULTILINE)[0]
    arguments = {}
    for name, text in _ENTRY.findall(section):
        text = " ".join(text.split()).partition(" Defaults to ")[0]
        found = _TYPE.match(text)
        text = text[found.end() :] if found else text
        pointer = re.fullmatch(r"See (?:`(\w+)` of )?`(\w+)`\.", text)
        if pointer:
            text = _library(pointer[2])[pointer[1] or name]
        arguments[name] = text
    return arguments


def _sections(hint):
    """Returns the sections in a type hint, also in a list or a union."""
    if isinstance(hint, type) and issubclass(hint, Config):
        return [hint]
    return [cls for part in typing.get_args(hint) for cls in _sections(part)]


if __name__ == "__main__":
    print(tables())
