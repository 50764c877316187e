"""Regularization towards a state that no longer changes."""

import keras
import tensorflow as tf

from deq_keras.core.checks import check_non_negative
from deq_keras.core.linearization import Linearization
from deq_keras.core.serialization import Config
from deq_keras.core.structure import StateStructure, squared_norm
from deq_keras.regularizers.regularizer import EquilibriumRegularizer


@keras.saving.register_keras_serializable(package="deq_keras")
class ResidualRegularizer(EquilibriumRegularizer):
    """Penalizes the change of one more step after the solve.

    Let z be the state after the solve, held constant:

        weight * mean_b max(0, r^2 - margin^2),    r = |f(z) - z| / |f(z)|

    It does not constrain df/dz, so information can travel undamped. It costs one
    evaluation and its backward pass. `DEQ` selects it by default for gradients of
    iterates, such as `TruncatedGradient`, which do not require an equilibrium.

    Args:
        weight: Float >= 0. Weight of the squared relative residual. Defaults to `3.0`.
        margin: Float >= 0. Relative residual without a penalty. Defaults to `0.01`.
        probability: Float in (0, 1]. Fraction of training steps that add the penalty;
            other steps do not compute it, except under XLA. Defaults to `1.0`.

    Call arguments:
        linearization: A `Linearization` of f at z.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64.

    Example:

    >>> regularizer = deq_keras.regularizers.ResidualRegularizer(margin=0.03)
    """

    def __init__(
        self, weight: float = 3.0, margin: float = 0.01, probability: float = 1.0
    ) -> None:
        super().__init__(probability)
        self.weight = check_non_negative("weight", weight)
        self.margin = check_non_negative("margin", margin)

    def penalty(self, linearization: Linearization, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return self.weight * excess_residual(linearization, self.margin)

    def get_config(self) -> Config:
        return {"weight": self.weight, "margin": self.margin, **super().get_config()}


def excess_residual(linearization: Linearization, margin: float) -> tf.Tensor:
    """Returns the mean of max(0, r^2 - margin^2) over the samples."""
    squares = squared_residual(linearization)
    return tf.reduce_mean(tf.nn.relu(squares - margin**2))


def squared_residual(linearization: Linearization) -> tf.Tensor:
    """Returns the squared relative residual of each sample."""
    structure = StateStructure(linearization.value)
    value = structure.to_matrix(linearization.value)
    residual = value - structure.to_matrix(linearization.point)
    # The scale is a constant: growing f(z) must not lower the penalty.
    scale = tf.stop_gradient(squared_norm(value))
    return squared_norm(residual) / tf.where(scale > 0, scale, 1.0)
