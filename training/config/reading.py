"""Reads a YAML config, applies overrides and validates it, without TensorFlow."""

import copy
import json

from .. import registry
from ..errors import InputError
from .errors import closest, fail, join, received_text, shorten
from .model import validate
from .sanitize import MAX_KEY, dump, parse, plain

# Far above the size of any config, but fast to read.
_MAX_BYTES = 2**18

# One process trains all variants with one strategy, the same modules and seeds.
_SHARED = ["variants", "tasks", "published", "distribution", "imports", "seeds"]


def load(path, overrides=()):
    """Returns the validated config of a YAML file.

    Args:
        path: Path of the file.
        overrides: List of strings `a.b=c` with YAML values, applied in order. A list
            element is named by its index, as in `phases.0.epochs=2`.

    Raises:
        InputError: If the file cannot be read or the config is not valid.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise InputError(
                f"it is longer than {_MAX_BYTES} bytes, so it is not a config."
            )
        mapping = parse(content.decode("utf-8-sig"))
    # ValueError: a path with a null byte, or text that is not UTF-8.
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read the config {path}: {error}") from error
    assignments = [parse_override(override) for override in overrides]
    try:
        return resolve(mapping, assignments)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_override(override):
    """Returns the path and the value of a string `a.b=c` with a YAML value.

    Raises:
        InputError: If it has another form.
    """
    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")) or len(path) > MAX_KEY:
        raise InputError(
            "An override must have the form a.b=value, with a path of at most "
            f"{MAX_KEY} characters. Received: {shorten(override)}."
        )
    try:
        return path, parse(text)
    except InputError as error:
        raise InputError(f"--set {shorten(override)}: {error}") from error


def resolve(mapping, assignments=()):
    """Returns the `Config` of a plain mapping after `(path, value)` assignments."""
    mapping = plain(mapping)
    if not isinstance(mapping, dict):
        raise InputError(f"A config must hold a mapping. {received_text('', mapping)}")
    name, names = mapping.get("experiment"), registry.names()
    if name not in names:
        fail("experiment", f"one of {', '.join(names)}", name, closest(name, names))
    cls = registry.find(name).schema
    config = validate(cls, mapping)
    if assignments:
        # Assigns to the mapping with all defaults, to change parts of a default.
        mapping, assigned = assign(to_mapping(config), assignments), dict(assignments)
        config = validate(cls, mapping)
        if {"variants", "tasks"} & assigned.keys():
            # Drops published numbers of variants that the assignments remove.
            names = variant_names(config)
            mapping["published"] = {
                heading: {name: row[name] for name in row if name in names}
                for heading, row in config.published.items()
            }
            config = validate(cls, mapping)
        # A resolved config has both keys: only an override shows that `seed` is wanted.
        if config.seeds is not None and "seed" in assigned:
            raise InputError(
                "`seed` is not used where a config has `seeds`. Set seeds="
                f"[{config.seed}], or also seeds=null. Received: seed={config.seed}, "
                f"seeds={config.seeds}."
            )
    _check_variants(config)
    return config


def _check_variants(config):
    """Raises `InputError` if variants are invalid, equal, or not those published."""
    shared = _SHARED if config.seeds is None else [*_SHARED, "seed"]
    for kind in ("variants", "tasks"):
        for name, changes in (getattr(config, kind) or {}).items():
            for path in changes:
                if path.partition(".")[0] in shared:
                    raise InputError(
                        f"`{kind}.{name}` cannot change {', '.join(shared)}, which all "
                        f"variants share. Received: {path}."
                    )
    known, names = {}, variant_names(config)
    for name in names:
        values = json.dumps({**to_mapping(variant(config, name)), "variants": None})
        other = known.setdefault(values, name)
        if other != name:
            raise InputError(
                f"The variants `{other}` and `{name}` must differ. Remove one, or set "
                "`seeds` to train with several seeds. Received: equal values."
            )
    for heading, row in config.published.items():
        for name in row:
            if name not in names:
                raise InputError(
                    f"`published.{heading}` must name variants of the config: "
                    f"{', '.join(names)}. Received: variant={shorten(name)}."
                    f"{closest(name, names)}"
                )


def to_mapping(config):
    """Returns the plain mapping that `resolve` turns back into `config`."""
    return config.model_dump()


def to_yaml(config):
    """Returns YAML text from which `load` reads an equal config."""
    return dump(to_mapping(config))


def _variants(config):
    """Returns a dict of variants, on every task if any, to lists of assignments."""
    variants = {name: [*changes.items()] for name, changes in config.variants.items()}
    if config.tasks is None:
        return variants
    return {
        f"{task}.{name}": [*of_task.items(), *of_variant]
        for task, of_task in config.tasks.items()
        for name, of_variant in variants.items()
    }


def variant_names(config):
    """Returns the names of all variants: of every variant on every task, if any."""
    return list(_variants(config))


def variant(config, name):
    """Returns the config of one of the variants: its values replaced, no variants.

    Raises:
        InputError: If the variant does not exist or its values are invalid.
    """
    variants = _variants(config)
    if name not in variants:
        raise InputError(
            f"There is no variant `{name}`.{closest(name, variants)} "
            f"Variants: {', '.join(variants)}."
        )
    try:
        mapping = assign(to_mapping(config), variants[name])
        del mapping["variants"], mapping["tasks"], mapping["published"]
        found = validate(type(config), mapping)
    except InputError as error:
        raise InputError(f"variant `{name}`: {error}") from error
    return found.model_copy(update={"variants": {name: {}}})


def run_names(config):
    """Returns the names of all runs of a `VariantsConfig`.

    A run is named `<variant>`, or `<variant>/seed_<seed>` if there are `seeds`. All
    seeds of a variant precede the next variant.
    """
    names = variant_names(config)
    if config.seeds is None:
        return names
    return [f"{name}/seed_{seed}" for name in names for seed in config.seeds]


def variant_of(run_name):
    """Returns the name of the variant that a run belongs to."""
    return run_name.partition("/")[0]


def by_variant(runs):
    """Returns a dict of variants to the list of their values in a dict of runs."""
    variants = {}
    for name, value in runs.items():
        variants.setdefault(variant_of(name), []).append(value)
    return variants


def run_config(config, run_name):
    """Returns the config of one run: its seed, and its variant's values replaced.

    Raises:
        InputError: If the run does not exist or its values are invalid.
    """
    name = variant_of(run_name)
    one = variant(config, name)
    if config.seeds is None and run_name == name:
        return one
    seeds = {f"{name}/seed_{seed}": seed for seed in config.seeds or ()}
    if run_name not in seeds:
        raise InputError(
            f"There is no run `{run_name}`.{closest(run_name, seeds)} "
            f"Runs: {', '.join(run_names(config))}."
        )
    return one.model_copy(update={"seed": seeds[run_name], "seeds": None})


def assign(mapping, assignments):
    """Returns a copy of `mapping` with values set at dotted paths.

    A mapping changes only its own keys of a section such as `optimizer`. It replaces a
    component, a section that is null, all `variants` or `tasks`, and the `model` if its
    `name` changes. A value can also set an argument of an object that is only a name:
    `anderson` becomes `{class_name: anderson, ...}`.

    Raises:
        InputError: If the path does not exist, or the result is not a plain tree.
    """
    mapping = copy.deepcopy(mapping)
    for path, value in assignments:
        _set(mapping, path.split("."), copy.deepcopy(value))
    return plain(mapping)


def _set(node, keys, value, parent=""):
    """Sets a value below a list or a mapping, which `parent` is the path of."""
    key, *others = keys
    path = join(parent, key)
    if isinstance(node, list):
        if not key.isdecimal() or int(key) >= len(node):
            raise InputError(
                f"`{path}` must be an index below {len(node)}. Received: "
                f"{shorten(key)}."
            )
        key = int(key)
    old = node[key] if isinstance(node, list) else node.get(key)
    if parent in ("variants", "tasks") and isinstance(old, dict):
        # A variant or a task names by paths what it replaces.
        if others:
            old[".".join(others)] = value
        elif isinstance(value, dict):
            old.update(value)
        else:
            node[key] = value
    elif others:
        if old is None or isinstance(old, str):
            old = node[key] = {} if old is None else {"class_name": old}
        if not isinstance(old, dict | list):
            raise InputError(f"`{path}` has no parts. {received_text(path, old)}")
        _set(old, others, value, path)
    elif _is_section(path, old, value):
        for name, part in value.items():
            _set(old, name.split("."), part, path)
    else:
        node[key] = value


def _is_section(path, old, new):
    """Returns whether a mapping changes keys of another and does not replace it."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return False
    if path == "model" and new.get("name", old.get("name")) != old.get("name"):
        return False
    return path not in ("variants", "tasks") and "class_name" not in {**old, **new}
