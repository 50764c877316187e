"""Regularisers of an equilibrium."""

import keras

from deq_keras import serialization
from deq_keras.regularizers.jacobian_regularizer import JacobianRegularizer

__all__ = ["ALL_OBJECTS", "JacobianRegularizer", "deserialize", "get", "serialize"]

ALL_OBJECTS = (JacobianRegularizer,)


def get(identifier):
    """Returns a Jacobian regulariser, or `None` for `None`.

    Args:
        identifier: `None`; `"jacobian_regularizer"`; a dict like
            `{"class_name": "JacobianRegularizer", "weight": 0.5}` or what `serialize`
            returns; or a `JacobianRegularizer`, which is returned as it is.

    Raises:
        ValueError: for an unknown name or argument.
    """
    if identifier is None:
        return None
    return serialization.get(
        identifier, JacobianRegularizer, ALL_OBJECTS, "jacobian_regularizer"
    )


def serialize(regularizer):
    """Returns the config dict of a regulariser, or `None` for `None`."""
    return regularizer and keras.saving.serialize_keras_object(regularizer)


def deserialize(config):
    """Returns the regulariser of a config dict."""
    return get(config)
