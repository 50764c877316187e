"""Base class of regularizers."""

import copy

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core.checks import check_positive_fraction
from deq_keras.core.graphs import is_compiled_by_xla
from deq_keras.core.linearization import Linearization
from deq_keras.core.random import fold_in, uniform
from deq_keras.core.serialization import Config, Configured, arguments_of


class EquilibriumRegularizer(Configured):
    """A penalty on f at its equilibrium, which is held constant.

    Subclasses implement `penalty`. They override `differentiates_jacobian` if the
    gradient of the penalty differentiates products with the Jacobian. `DEQ` adds the
    result to the losses in training.

    Args:
        probability: Float in (0, 1]. Fraction of training steps that add the penalty;
            other steps do not compute it, except under XLA. Defaults to `1.0`.

    Call arguments:
        linearization: A `Linearization` of f at z*.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64.
    """

    def __init__(self, probability: float = 1.0) -> None:
        self.probability: float | tf.Tensor = check_positive_fraction(
            "probability", probability
        )

    def with_probability(self, probability: tf.Tensor) -> "EquilibriumRegularizer":
        """Returns a copy that is drawn with another probability, a scalar tensor."""
        copied = copy.copy(self)
        copied.probability = probability
        return copied

    def __call__(self, linearization: Linearization, seed: tf.Tensor) -> tf.Tensor:
        if not tf.is_tensor(self.probability) and self.probability == 1.0:
            return self.penalty(linearization, seed)
        is_drawn = uniform((), fold_in(seed, 0)) < self.probability
        zero = ops.zeros((), loss_dtype(linearization))
        # XLA needs static permutations and shapes. Within a branch, it does not know
        # them for the gradient of a product with the Jacobian.
        if is_compiled_by_xla():
            return tf.where(is_drawn, self.penalty(linearization, seed), zero)
        return ops.cond(
            is_drawn, lambda: self.penalty(linearization, seed), lambda: zero
        )

    @property
    def differentiates_jacobian(self) -> bool:
        """Boolean. Whether the gradient differentiates products with the Jacobian."""
        return False

    def penalty(self, linearization: Linearization, seed: tf.Tensor) -> tf.Tensor:
        """Returns the penalty, a scalar of `loss_dtype(linearization)`."""
        raise NotImplementedError

    def get_config(self) -> Config:
        return arguments_of(self, EquilibriumRegularizer)


def loss_dtype(linearization: Linearization) -> str:
    """Returns float64 for a float64 state, else float32."""
    leaves = tree.flatten(linearization.value)
    dtypes = {keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves}
    return "float64" if "float64" in dtypes else "float32"
