"""Names, configs and instances: the three ways to say which object is meant."""

import re

import keras

from deq_keras.checks import did_you_mean


def registry(classes):
    """Maps snake-case names to classes: `FixedPointIteration` has the name
    `fixed_point_iteration`."""
    return {_snake_case(cls.__name__): cls for cls in classes}


def get(identifier, base, classes, kind, aliases=None):
    """Returns an object from its name, config or instance.

    Args:
        identifier: str (a registered name, or a class name), dict (what
            `serialize` returns, or `{"class_name": name, **arguments}`), or an
            instance of `base`.
        base: the class that every object of this family derives from.
        classes: tuple of classes that are known by name.
        kind: str. The family's name in messages, `"solver"` for example.
        aliases: optional dict of further names to classes.

    Returns:
        An instance of `base`.

    Raises:
        ValueError: for an unknown name, and for a config that no object can be made of.
    """
    if isinstance(identifier, base):
        return identifier
    known = {**registry(classes), **(aliases or {})}
    if isinstance(identifier, str):
        return _class_named(identifier, known, kind)()
    if isinstance(identifier, dict) and "class_name" in identifier:
        return _from_config(identifier, base, known, kind)
    raise ValueError(
        f"A {kind} must be a name, a config dict with the key 'class_name' or an "
        f"instance of {base.__name__}. Received: {kind}={identifier!r} "
        f"(of type {type(identifier).__name__}). Names: {sorted(known)}."
    )


def _from_config(config, base, known, kind):
    if "config" in config:
        return _deserialized(config, base, known, kind)
    arguments = {key: value for key, value in config.items() if key != "class_name"}
    cls = _class_named(config["class_name"], known, kind)
    try:
        return cls(**arguments)
    except (OverflowError, TypeError) as error:
        raise ValueError(
            f"{cls.__name__} does not take these arguments. Received: {arguments!r} "
            f"({error})."
        ) from error


def _deserialized(config, base, known, kind):
    """Returns the object of what `keras.saving.serialize_keras_object` returned."""
    classes = {cls.__name__: cls for cls in known.values()}
    try:
        result = keras.saving.deserialize_keras_object(config, custom_objects=classes)
    # Keras takes it for granted that a config is well-formed.
    except (AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(
            f"No {kind} can be made of this: with the key 'config', it must be what "
            "`serialize` returns; without, arguments stand beside 'class_name'. "
            f"Received: {config!r} ({error})."
        ) from error
    if not isinstance(result, base):
        raise ValueError(
            f"Expected the config of a {kind}. Received: {config!r}, which is a "
            f"{type(result).__name__}."
        )
    return result


def _class_named(name, known, kind):
    by_any_name = {**known, **{cls.__name__: cls for cls in known.values()}}
    if isinstance(name, str) and name in by_any_name:
        return by_any_name[name]
    raise ValueError(
        f"Unknown {kind}. Expected one of {sorted(known)}. "
        f"Received: {kind}={name!r}.{did_you_mean(name, by_any_name)}"
    )


def _snake_case(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
