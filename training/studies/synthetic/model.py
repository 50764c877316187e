"""Builds a scalar equilibrium model."""

import keras

import deq_keras

from ...errors import InputError
from .cell import ScalarCell


def build(config, weight, seed):
    """Returns the model x -> z*(x), not yet compiled.

    Args:
        config: the `SyntheticConfig`.
        weight: float. The weight of the Jacobian regularizer; 0 for none.
        seed: int. Of initialization and probes.

    Raises:
        InputError: if the solver or the gradient refuses an argument.
    """
    # Set here, because initializers draw from the global generator.
    keras.utils.set_random_seed(seed)
    regularizer = None
    if weight:
        regularizer = deq_keras.regularizers.JacobianRegularizer(weight)
    try:
        layer = deq_keras.layers.DEQ(
            ScalarCell(config.model.units, name="cell"),
            solver=config.model.solver,
            gradient=config.model.gradient,
            regularizer=regularizer,
            seed=seed,
            name="deq",
        )
    except ValueError as error:
        raise InputError(f"`model`: {error}") from error
    inputs = keras.Input((1,), name="x")
    return keras.Model(inputs, layer(inputs), name="scalar_equilibrium")
