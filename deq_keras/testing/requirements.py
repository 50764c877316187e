"""Requirements of plug-ins, and checks that all components share."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest

REGIMES = ("eager", "graph", "xla")
_REGISTER = (
    "Decorate the class with "
    '@keras.saving.register_keras_serializable("package of yours").'
)


class Subject:
    """A plug-in under test.

    Args:
        name: String. Its name in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def require(
        self, is_met: Any, rule: str, expected: Any, received: Any, remedy: str
    ) -> None:
        """Raises `AssertionError` unless a requirement is met.

        Args:
            is_met: Boolean.
            rule: String. The requirement, as the end of "`name` must ...".
            expected: The expected value.
            received: The received value.
            remedy: String. How to fix it: a sentence.
        """
        if not is_met:
            raise AssertionError(
                f"`{self.name}` must {rule}. Expected: {expected}. "
                f"Received: {received}. {remedy}"
            )

    def require_equal(self, rule: str, expected: Any, received: Any, fix: str) -> None:
        """Like `require` for two values that must be equal."""
        self.require(expected == received, rule, expected, received, fix)

    def require_close(
        self, rule: str, expected: Nest, received: Nest, tolerance: float, fix: str
    ) -> None:
        """Like `require` for two nests of tensors that must be close.

        Args:
            rule: See `require`.
            expected: Nest of tensors.
            received: Nest of tensors.
            tolerance: Float. Largest deviation, relative to the largest magnitude of
                the expected values, but at least to 1. Zero: equal bit for bit.
            fix: See `require`.
        """
        error = deviation(expected, received)
        bound = f"a deviation of at most {tolerance:g}"
        self.require(error <= tolerance, rule, bound, f"{error:g}", fix)


def deviation(expected: Nest, received: Nest) -> float:
    """Returns the largest deviation of two nests, relative to the largest magnitude.

    Non-finite values must be the same.
    """
    largest = 0.0
    pairs = zip(tree.flatten(expected), tree.flatten(received), strict=True)
    for leaves in pairs:
        one, two = (np.asarray(tf.cast(leaf, tf.float64)) for leaf in leaves)
        if one.shape != two.shape or np.any(np.isfinite(one) != np.isfinite(two)):
            return float("inf")
        one, two = one[np.isfinite(one)], two[np.isfinite(one)]
        scale = np.abs(one).max(initial=1.0)
        largest = max(largest, np.abs(one - two).max(initial=0.0) / scale)
    return float(largest)


def compiled(function: Callable, regime: str) -> Callable:
    """Returns a function as it runs eagerly, in a graph or compiled by XLA."""
    if regime == "eager":
        return function
    return tf.function(function, autograph=False, jit_compile=regime == "xla")


def check_component(
    subject: Subject, component: Any, base: type, get: Callable
) -> None:
    """Checks the base class and the config of a solver, gradient or regularizer.

    Args:
        subject: The `Subject`.
        component: A solver, gradient or regularizer.
        base: The base class.
        get: The function that returns a component from a name or a config.
    """
    cls, require = type(component), subject.require
    require(
        isinstance(component, base),
        f"be a {base.__name__}",
        base.__name__,
        cls.__name__,
        "Derive the class from it.",
    )
    config = component.get_config()
    missing = sorted(set(inspect.signature(cls).parameters) - set(config))
    require(
        not missing,
        "return every argument of its constructor from `get_config`",
        "all arguments",
        f"a config without {missing}",
        "Extend `get_config`: return {**super().get_config(), name: value}.",
    )
    copy = cls.from_config(config).get_config()
    subject.require_equal(
        "have the same config after `from_config`",
        config,
        copy,
        "Store each argument under its own name.",
    )
    check_registration(subject, cls)
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(component)))
    copy = keras.saving.deserialize_keras_object(serialized).get_config()
    subject.require_equal(
        "have the same config after `keras.saving.serialize_keras_object`, JSON and "
        "`deserialize_keras_object`",
        config,
        copy,
        "Return plain data from `get_config`: numbers, strings, lists and dicts.",
    )
    name = keras.saving.get_registered_name(cls)
    received = type(get({"class_name": name, **config}))
    subject.require_equal("be known by its registered name", cls, received, _REGISTER)


def check_registration(subject: Subject, cls: type) -> None:
    """Checks that Keras finds a class by its registered name."""
    name = keras.saving.get_registered_name(cls)
    is_known = keras.saving.get_registered_object(name) is cls
    subject.require(
        is_known,
        "be registered with Keras, so that saved models can be loaded",
        f"a registered name such as 'package>{cls.__name__}'",
        repr(name),
        _REGISTER,
    )
