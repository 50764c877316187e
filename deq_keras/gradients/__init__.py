"""Strategies to differentiate an equilibrium."""

import keras

from deq_keras.core import serialization
from deq_keras.core.serialization import Config
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.forward import replace_gradient, solve_without_gradient
from deq_keras.gradients.gradient import (
    Attachment,
    Equilibrium,
    EquilibriumGradient,
    SecondOrderLimit,
)
from deq_keras.gradients.implicit import ImplicitGradient
from deq_keras.gradients.neumann import NeumannGradient
from deq_keras.gradients.phantom import PhantomGradient
from deq_keras.gradients.reversible import ReversibleGradient
from deq_keras.gradients.truncated import TruncatedGradient
from deq_keras.gradients.unrolled import UnrolledGradient

__all__ = [
    "ALL_OBJECTS",
    "AdjointReport",
    "Attachment",
    "Equilibrium",
    "EquilibriumGradient",
    "ImplicitGradient",
    "NeumannGradient",
    "PhantomGradient",
    "ReversibleGradient",
    "SecondOrderLimit",
    "TruncatedGradient",
    "UnrolledGradient",
    "deserialize",
    "get",
    "replace_gradient",
    "serialize",
    "solve_without_gradient",
]

ALL_OBJECTS = (
    ImplicitGradient,
    NeumannGradient,
    PhantomGradient,
    ReversibleGradient,
    TruncatedGradient,
    UnrolledGradient,
)

# Names that papers and other libraries use.
_IN_THE_LITERATURE = {
    "ift": "implicit",
    "implicit_function_theorem": "implicit",
    "jfb": "phantom",
    "jacobian_free": "phantom",
    "one_step": "phantom",
    "ugrad": "phantom",
    "backprop": "unrolled",
    "bptt": "unrolled",
    "unrolling": "unrolled",
    "tbptt": "truncated",
}


def get(identifier: str | Config | EquilibriumGradient) -> EquilibriumGradient:
    """Returns a gradient strategy from a name, a config dict or an instance.

    Args:
        identifier: `"implicit"`, `"neumann"`, `"phantom"`, `"reversible"`,
            `"truncated"`, `"unrolled"`; a dict like `{"class_name": "PhantomGradient",
            "num_steps": 3}` or from `serialize`; or an `EquilibriumGradient`, which is
            returned unchanged.

    Raises:
        ValueError: For an unknown name or argument.
    """
    return serialization.get(
        identifier,
        EquilibriumGradient,
        ALL_OBJECTS,
        "gradient",
        synonyms=_IN_THE_LITERATURE,
    )


def serialize(gradient: EquilibriumGradient) -> Config:
    """Returns the config dict of a gradient strategy."""
    return keras.saving.serialize_keras_object(gradient)


def deserialize(config: str | Config) -> EquilibriumGradient:
    """Returns the gradient strategy of a config dict."""
    return get(config)
