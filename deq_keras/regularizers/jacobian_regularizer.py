"""Regularisation of the Frobenius norm of the Jacobian."""

import keras
from keras import ops, tree

from deq_keras.checks import check_count, check_non_negative
from deq_keras.regularizers.regularizer import (
    EquilibriumRegularizer,
    derived_seed,
    loss_dtype,
    normal_like,
)


@keras.saving.register_keras_serializable("deq_keras")
class JacobianRegularizer(EquilibriumRegularizer):
    """Penalises the Frobenius norm of df/dz at the equilibrium.

        weight * mean_v |v^T J(z*)|^2 / (B D),        v ~ N(0, I)

    an unbiased (Hutchinson) estimate of `weight` times the batch mean of
    |J|_F^2 / D, where D is the number of entries of one sample's state. z* is held
    constant: the gradient goes to the parameters and the injection through J only. It
    keeps the Jacobian small, so the solver needs fewer evaluations, and the implicit
    gradient stays well conditioned.

    Args:
        weight: float >= 0. Defaults to `1.0`. The papers use 0.4 to 3.
        num_probes: int >= 1. How many v are drawn. Defaults to `1`, as in the paper.
        probability: float in (0, 1]. The share of training steps in which the penalty
            is computed; the others do not pay for it. Defaults to `1.0`.

    Call arguments:
        linearization: a `Linearization` of f at z*.
        seed: int32 tensor of shape `(2,)`. Every draw follows from it.

    Returns:
        A float scalar in float32 or, for a float64 state, float64.

    Example:

    >>> regularizer = deq_keras.regularizers.JacobianRegularizer(0.5, probability=0.25)

    Reference:

    - Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian Regularization",
      equation 8.
    """

    def __init__(self, weight=1.0, num_probes=1, probability=1.0):
        super().__init__(probability)
        self.weight = check_non_negative("weight", weight)
        self.num_probes = check_count("num_probes", num_probes)

    def penalty(self, linearization, seed):
        return self.weight * self.mean_squared_norm(linearization, seed)

    def mean_squared_norm(self, linearization, seed):
        """The estimate of mean |J|_F^2 / D, without the weight."""
        dtype = loss_dtype(linearization)
        total = ops.zeros((), dtype)
        for i in range(self.num_probes):
            probe = self.probe(linearization.value, derived_seed(seed, i + 1))
            products = tree.flatten(linearization.vjp(probe))
            total += sum(ops.sum(ops.square(ops.cast(p, dtype))) for p in products)
        size = sum(ops.size(leaf) for leaf in tree.flatten(linearization.value))
        return total / (self.num_probes * ops.cast(size, dtype))

    def probe(self, value, seed):
        """Draws v ~ N(0, I), a nest like `value`."""
        return normal_like(value, seed)

    def get_config(self):
        return {
            "weight": self.weight,
            "num_probes": self.num_probes,
            **super().get_config(),
        }
