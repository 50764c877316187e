"""Regularization of the Frobenius norm of the Jacobian."""

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core.checks import check_count, check_non_negative
from deq_keras.core.linearization import Linearization
from deq_keras.core.random import fold_in, normal_like
from deq_keras.core.serialization import Config
from deq_keras.core.structure import Nest
from deq_keras.regularizers.regularizer import (
    EquilibriumRegularizer,
    loss_dtype,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class JacobianRegularizer(EquilibriumRegularizer):
    """Penalizes the Frobenius norm of df/dz at the equilibrium.

        weight * mean_v |v^T J(z*)|^2 / (B D),        v ~ N(0, I)

    This is an unbiased (Hutchinson) estimate of `weight` times the batch mean of
    |J|_F^2 / D, where D is the number of entries of one sample's state. z* is held
    constant: the penalty has a gradient only through J. The penalty keeps the Jacobian
    small, so that the solver needs fewer evaluations and the implicit gradient stays
    well conditioned.

    Args:
        weight: Float >= 0. Defaults to `1.0`. The papers use 0.4 to 3.
        num_probes: Positive integer. Number of vectors v. Defaults to `1`, as in the
            paper.
        probability: Float in (0, 1]. Fraction of training steps that add the penalty;
            other steps do not compute it, except under XLA. Defaults to `1.0`.

    Call arguments:
        linearization: A `Linearization` of f at z*.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64.

    Example:

    >>> regularizer = deq_keras.regularizers.JacobianRegularizer(0.5, probability=0.25)

    Reference:

    - Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian Regularization",
      equation 4.
    """

    def __init__(
        self, weight: float = 1.0, num_probes: int = 1, probability: float = 1.0
    ) -> None:
        super().__init__(probability)
        self.weight = check_non_negative("weight", weight)
        self.num_probes = check_count("num_probes", num_probes)

    @property
    def differentiates_jacobian(self) -> bool:
        return True

    def penalty(self, linearization: Linearization, seed: tf.Tensor) -> tf.Tensor:
        return self.weight * self.mean_squared_norm(linearization, seed)

    def mean_squared_norm(
        self, linearization: Linearization, seed: tf.Tensor
    ) -> tf.Tensor:
        """The estimate of mean |J|_F^2 / D, without the weight."""
        dtype = loss_dtype(linearization)
        total = ops.zeros((), dtype)
        for i in range(self.num_probes):
            probe = self.probe(linearization.value, fold_in(seed, i + 1))
            products = tree.flatten(linearization.vjp(probe))
            total += sum(ops.sum(ops.square(ops.cast(p, dtype))) for p in products)
        size = sum(ops.size(leaf) for leaf in tree.flatten(linearization.value))
        return total / (self.num_probes * ops.cast(size, dtype))

    def probe(self, value: Nest, seed: tf.Tensor) -> Nest:
        """Draws v ~ N(0, I), a nest like `value`."""
        return normal_like(value, seed)

    def get_config(self) -> Config:
        return {
            "weight": self.weight,
            "num_probes": self.num_probes,
            **super().get_config(),
        }
