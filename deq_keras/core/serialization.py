"""Names, configs and instances: the three ways to specify an object."""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeAlias, TypeVar

import keras

from deq_keras.core.checks import did_you_mean

Config: TypeAlias = dict[str, Any]
T = TypeVar("T", bound="Configured")


class Configured:
    """Base class of objects defined by their config, such as solvers."""

    _is_frozen = False

    def get_config(self) -> Config:
        return {}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**config)

    def freeze(self) -> None:
        """Refuses changes of arguments from now on.

        A layer does this to its components. A change would reach some of its paths, and
        not the functions that were compiled before.
        """
        self._is_frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_frozen and name in self.get_config():
            raise AttributeError(
                f"A {type(self).__name__} of a layer is replaced, not changed: "
                "layer.solver = Anderson(max_iter=8), for example, and then compile "
                f"the model. Received: {name}={value!r}."
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to no layer.
        return {k: v for k, v in vars(self).items() if k != "_is_frozen"}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


def arguments_of(instance: Any, cls: type, *parts: Any) -> Config:
    """Returns the config of the arguments that the constructor of a class names.

    The instance or one of its parts must hold each argument in an attribute of the same
    name.

    Args:
        instance: Instance of `cls`.
        cls: Class whose `get_config` merges them into the config of its base class.
        *parts: Objects that hold arguments which `instance` does not, such as a layer.
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    _, *parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    names = [one.name for one in parameters if one.kind not in variadic]
    owners = (instance, *parts)
    return {
        name: _plain(name, next(getattr(o, name) for o in owners if hasattr(o, name)))
        for name in names
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if name == "activation" and callable(value):
        return keras.activations.serialize(value)  # The name of one of Keras' own.
    return keras.saving.serialize_keras_object(value)


def registry(classes: Iterable[type[T]]) -> dict[str, type[T]]:
    """Maps snake-case names to classes: `FixedPointIteration` has the name
    `fixed_point_iteration`."""
    return {_snake_case(cls.__name__): cls for cls in classes}


def get(
    identifier: Any,
    base: type[T],
    classes: tuple[type[T], ...],
    kind: str,
    aliases: Mapping[str, type[T]] | None = None,
    synonyms: Mapping[str, str] | None = None,
) -> T:
    """Returns an object from its name, config or instance.

    Args:
        identifier: String (a known name, with or without the kind at its end, a class
            name, or a name that Keras has registered, such as `"package>Name"`), dict
            (what `serialize` returns, or `{"class_name": name, **arguments}`), or an
            instance of `base`.
        base: Class that every object of this family derives from.
        classes: Tuple of classes that are known by name.
        kind: String. The family's name in messages, `"solver"` for example.
        aliases: Optional dict of further names to classes.
        synonyms: Optional dict of names in the literature to known names, for hints.

    Returns:
        An instance of `base`.

    Raises:
        ValueError: If the name is unknown or the config is invalid.
    """
    if isinstance(identifier, base):
        return identifier
    known = registry(classes)
    short = {name.removesuffix(f"_{kind}"): cls for name, cls in known.items()}
    known = {**known, **short, **(aliases or {})}
    if isinstance(identifier, str):
        if synonyms and identifier in synonyms:
            raise ValueError(
                f"Unknown {kind}. Expected one of {sorted(known)}. Received: "
                f"{kind}={identifier!r}. Did you mean {synonyms[identifier]!r}?"
            )
        return _find_class(identifier, base, known, kind)()
    if isinstance(identifier, dict) and "class_name" in identifier:
        return _from_config(identifier, base, known, kind)
    raise ValueError(
        f"The {kind} must be a name, a config dict with the key 'class_name' or an "
        f"instance of {base.__name__}. Received: {kind}={identifier!r} "
        f"(of type {type(identifier).__name__}). Names: {sorted(known)}."
    )


def _from_config(
    config: Config, base: type[T], known: Mapping[str, type[T]], kind: str
) -> T:
    if "config" in config:
        return _deserialize(config, base, known, kind)
    arguments = {key: value for key, value in config.items() if key != "class_name"}
    cls = _find_class(config["class_name"], base, known, kind)
    try:
        return cls.from_config(arguments)
    except (OverflowError, TypeError) as error:
        raise ValueError(
            f"{cls.__name__} does not take these arguments. Received: {arguments!r} "
            f"({error}).{_suggest(arguments, cls)}"
        ) from error


def _suggest(arguments: Config, cls: type) -> str:
    """Returns a hint for the first argument that a class does not have."""
    names = inspect.signature(cls).parameters
    unknown = [name for name in arguments if name not in names]
    return did_you_mean(unknown[0], names) if unknown else ""


def _deserialize(
    config: Config, base: type[T], known: Mapping[str, type[T]], kind: str
) -> T:
    """Returns the object that `keras.saving.serialize_keras_object` serialized."""
    classes = {cls.__name__: cls for cls in known.values()}
    try:
        result = keras.saving.deserialize_keras_object(config, custom_objects=classes)
    # Keras assumes that a config is well-formed.
    except (AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(
            f"Cannot create the {kind} from this dict. With the key 'config', it must "
            "come from `serialize`; otherwise, arguments stand beside 'class_name'. "
            f"Received: {config!r} ({error})."
        ) from error
    if not isinstance(result, base):
        raise ValueError(
            f"Expected the config of a subclass of {base.__name__} as the {kind}. "
            f"Received: {config!r}, whose class is {type(result).__name__}."
        )
    return result


def _find_class(
    name: Any, base: type[T], known: Mapping[str, type[T]], kind: str
) -> type[T]:
    by_any_name = {**known, **{cls.__name__: cls for cls in known.values()}}
    if isinstance(name, str):
        if name in by_any_name:
            return by_any_name[name]
        registered = keras.saving.get_registered_object(name)
        if isinstance(registered, type) and issubclass(registered, base):
            return registered
    hint = did_you_mean(name, by_any_name)
    if isinstance(name, str) and ">" in name:
        hint = (
            f" A subclass of {base.__name__} has this name if its module has been "
            "imported and registers it: "
            "@keras.saving.register_keras_serializable(package)."
        )
    raise ValueError(
        f"Unknown {kind}. Expected one of {sorted(known)}. "
        f"Received: {kind}={name!r}.{hint}"
    )


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
