"""Regularisation of the Jacobian at the equilibrium."""

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.solvers.checks import check_count, check_fraction, check_non_negative


@keras.saving.register_keras_serializable("deq_keras")
class JacobianRegularizer:
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
        self.weight = check_non_negative("weight", weight)
        self.num_probes = check_count("num_probes", num_probes)
        self.probability = check_fraction("probability", probability)

    def __call__(self, linearization, seed):
        if self.probability == 1.0:
            return self.weight * self.mean_squared_norm(linearization, seed)
        draw = tf.random.stateless_uniform((), _derived(seed, 0))
        dtype = _loss_dtype(linearization)
        return ops.cond(
            draw < self.probability,
            lambda: self.weight * self.mean_squared_norm(linearization, seed),
            lambda: ops.zeros((), dtype),
        )

    def mean_squared_norm(self, linearization, seed):
        """The estimate of mean |J|_F^2 / D, without the weight."""
        dtype = _loss_dtype(linearization)
        total = ops.zeros((), dtype)
        for i in range(self.num_probes):
            probe = self.probe(linearization.value, _derived(seed, i + 1))
            products = tree.flatten(linearization.vjp(probe))
            total += sum(ops.sum(ops.square(ops.cast(p, dtype))) for p in products)
        size = sum(ops.size(leaf) for leaf in tree.flatten(linearization.value))
        return total / (self.num_probes * ops.cast(size, dtype))

    def probe(self, value, seed):
        """Draws v ~ N(0, I), a nest like `value`."""
        leaves = [
            tf.random.stateless_normal(
                ops.shape(leaf), _derived(seed, i), dtype=leaf.dtype
            )
            for i, leaf in enumerate(tree.flatten(value))
        ]
        return tree.pack_sequence_as(value, leaves)

    def get_config(self):
        return {
            "weight": self.weight,
            "num_probes": self.num_probes,
            "probability": self.probability,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def _derived(seed, index):
    """A seed of its own for the draw `index` that follows from `seed`."""
    return seed + ops.convert_to_tensor([0, 7919 * (index + 1)], dtype=seed.dtype)


def _loss_dtype(linearization):
    leaves = tree.flatten(linearization.value)
    dtypes = {keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves}
    return "float64" if "float64" in dtypes else "float32"
