"""Regularizers of an equilibrium."""

import keras

from deq_keras.core import serialization
from deq_keras.core.serialization import Config
from deq_keras.regularizers.penalties import (
    PENALTIES,
    ContractionRegularizer,
    EquilibriumRegularizer,
    JacobianRegularizer,
    ResidualRegularizer,
)

__all__ = [
    "ALL_OBJECTS",
    "ContractionRegularizer",
    "EquilibriumRegularizer",
    "JacobianRegularizer",
    "ResidualRegularizer",
    "deserialize",
    "get",
    "serialize",
]

ALL_OBJECTS = PENALTIES


def get(
    identifier: str | Config | EquilibriumRegularizer | None,
) -> EquilibriumRegularizer | None:
    """Returns a regularizer, or `None` for `None`.

    Args:
        identifier: `None`; `"contraction"`, `"jacobian"`, `"residual"`; a dict like
            `{"class_name": "JacobianRegularizer", "weight": 0.5}` or from `serialize`;
            or an `EquilibriumRegularizer`, which is returned unchanged.

    Raises:
        ValueError: For an unknown name or argument.
    """
    if identifier is None:
        return None
    return serialization.get(
        identifier, EquilibriumRegularizer, ALL_OBJECTS, "regularizer"
    )


def serialize(regularizer: EquilibriumRegularizer | None) -> Config | None:
    """Returns the config dict of a regularizer, or `None` for `None`."""
    if regularizer is None:
        return None
    return keras.saving.serialize_keras_object(regularizer)


def deserialize(config: str | Config | None) -> EquilibriumRegularizer | None:
    """Returns the regularizer of a config dict."""
    return get(config)
