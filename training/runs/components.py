"""Components by the names in a config, which the library defines."""

import keras

import deq_keras

from ..config.errors import closest, fail
from ..config.fields import AUTO, INHERIT
from ..errors import config_errors

STRATEGIES = {
    "solver": deq_keras.solvers.get,
    "gradient": deq_keras.gradients.get,
    "regularizer": deq_keras.regularizers.get,
    "initial_state": deq_keras.initial_states.get,
}


def check(config):
    """Raises `InputError` if a strategy has an unknown name or an invalid argument.

    It needs no data, which may take minutes to load.
    """
    phases = [(f"phases.{i}", phase) for i, phase in enumerate(config.phases)]
    for place, section in [("model", config.model), *phases]:
        for name, get in STRATEGIES.items():
            value = getattr(section, name)
            words = [None] if place == "model" else [None, INHERIT]
            if name != "initial_state":
                words.append(AUTO)
            if value not in words:
                with config_errors(f"{place}.{name}"):
                    get(value)


def find_class(path, config, classes, base=None):
    """Returns the class that a config names, and the dict of its arguments.

    Args:
        path: String. Dotted path of the config key.
        config: String or dict, the value of the key.
        classes: Dict of names to classes.
        base: Class. Its subclasses that a user has registered in Keras are possible
            too. Defaults to `None`: no other class is possible.

    Raises:
        InputError: If the name is unknown.
    """
    arguments = {"class_name": config} if isinstance(config, str) else dict(config)
    name = arguments.pop("class_name")
    known = {_normalize(key): cls for key, cls in classes.items()}
    cls = known.get(_normalize(name))
    if cls is None and base is not None:
        cls = keras.saving.get_registered_object(name)
        cls = cls if isinstance(cls, type) and issubclass(cls, base) else None
    if cls is None:
        expected = f"one of {', '.join(classes)}"
        if base is not None:
            expected += (
                f", or the name package>Class of a registered {base.__name__} in a "
                "module of `imports`"
            )
        fail(path, expected, config, closest(name, classes))
    return cls, arguments


def _normalize(name):
    return name.replace("_", "").lower()
