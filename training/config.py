"""Reads a YAML config, applies overrides and validates it, without TensorFlow."""

import copy
import dataclasses
import pkgutil
import re
from pathlib import Path

import yaml

from training.errors import InputError
from training.validation import closest, from_mapping

# The dataclass of each experiment's config. Its module must not import TensorFlow.
EXPERIMENTS = {
    "classification": "training.schema:ClassificationConfig",
    "defaults": "training.experiments.defaults_schema:DefaultsConfig",
    "language_model": "training.experiments.language_model_schema:LanguageModelConfig",
    "mdeq_classification": "training.experiments.mdeq_schema:MDEQClassificationConfig",
    "mdeq_segmentation": (
        "training.experiments.mdeq_segmentation_schema:MDEQSegmentationConfig"
    ),
    "synthetic": "training.experiments.synthetic_schema:SyntheticConfig",
}


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `1e-3` as a number and refuses repeated keys."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise InputError(f"The key `{key}` is given twice (line {line}).")
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot in a float; everybody else does not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"),
    "-+0123456789",
)


def load(path, overrides=()):
    """Returns the validated config of a YAML file.

    Args:
        path: the YAML file.
        overrides: strings `a.b=c` with YAML values, applied in order. A list element
            is named by its index, as in `phases.0.epochs=2`.

    Raises:
        InputError: if the file cannot be read or the config is not valid.
    """
    mapping = read_yaml(path)
    assignments = [parse_override(override) for override in overrides]
    try:
        return resolve(mapping, assignments)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_yaml(path):
    """Returns the mapping that a YAML file holds."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        mapping = yaml.load(text, _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, InputError) as error:
        raise InputError(f"Cannot read the config {path}: {error}") from error
    if not isinstance(mapping, dict):
        raise InputError(f"{path} must hold a mapping. Received: {mapping!r}.")
    return mapping


def resolve(mapping, assignments=()):
    """Returns the dataclass of a plain mapping after `(path, value)` assignments."""
    cls = _schema(mapping.get("experiment"))
    config = from_mapping(cls, mapping)
    if assignments:
        # On the filled-in mapping, so that a default can be changed by its parts.
        config = from_mapping(cls, assign(to_mapping(config), assignments))
    for name in getattr(config, "variants", ()):
        variant(config, name)
    return config


def to_mapping(config):
    """Returns the plain mapping that `resolve` turns back into `config`."""
    return copy.deepcopy(dataclasses.asdict(config))


def variant(config, name):
    """Returns the config of one of the variants: its values replaced, no variants.

    Raises:
        InputError: if there is no such variant or its values are not valid.
    """
    if name not in config.variants:
        raise InputError(
            f"There is no variant `{name}`.{closest(name, config.variants)} "
            f"Variants: {', '.join(config.variants)}."
        )
    changes = config.variants[name] or {}
    if not isinstance(changes, dict):
        raise InputError(
            f"`variants.{name}` must be a mapping of dotted paths to values. "
            f"Received: {name}={changes!r}."
        )
    mapping = assign(to_mapping(config), changes.items())
    mapping["variants"] = {name: {}}
    try:
        return from_mapping(type(config), mapping)
    except InputError as error:
        raise InputError(f"variant `{name}`: {error}") from error


def assign(mapping, assignments):
    """Returns `mapping` with values set at dotted paths.

    An argument may be set on an object that was given by name alone: `anderson`
    becomes `{class_name: anderson, ...}`.
    """
    mapping = copy.deepcopy(mapping)
    for path, value in assignments:
        *parents, last = path.split(".")
        node = mapping
        for depth, key in enumerate(parents):
            place = ".".join(parents[: depth + 1])
            node = _descend(node, key, place)
        if isinstance(node, list):
            node[_index(node, last, path)] = copy.deepcopy(value)
        else:
            node[last] = copy.deepcopy(value)
    return mapping


def _descend(node, key, place):
    if isinstance(node, list):
        key = _index(node, key, place)
    elif key not in node or node[key] is None:
        node[key] = {}
    elif isinstance(node[key], str):
        node[key] = {"class_name": node[key]}
    if not isinstance(node[key], dict | list):
        raise InputError(f"`{place}` has no parts. Received: {key}={node[key]!r}.")
    return node[key]


def _index(node, key, place):
    if not key.isdecimal() or int(key) >= len(node):
        raise InputError(
            f"`{place}` must be an index below {len(node)}. Received: {key!r}."
        )
    return int(key)


def parse_override(override):
    """Returns the path and the value of a string `a.b=c` with a YAML value.

    Raises:
        InputError: if it has another form.
    """
    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")):
        raise InputError(
            f"An override must have the form a.b=value. Received: {override!r}."
        )
    try:
        return path, yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"--set {override}: {error}") from error


def _schema(name):
    if name not in EXPERIMENTS:
        raise InputError(
            f"`experiment` must be one of {list(EXPERIMENTS)}. "
            f"Received: experiment={name!r}.{closest(name, EXPERIMENTS)}"
        )
    return pkgutil.resolve_name(EXPERIMENTS[name])
