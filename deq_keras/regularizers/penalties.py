"""Regularizers: penalties on f at the state where a solve ends."""

import copy
import functools

import keras
import tensorflow as tf
from keras import ops, tree

from deq_keras.core.checks import (
    check_count,
    check_non_negative,
    check_positive_fraction,
)
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.linearization import Linearization, matrix_vjp
from deq_keras.core.random import fold_in, normal_like, uniform
from deq_keras.core.serialization import Config, Configured, arguments_of
from deq_keras.core.structure import Nest, StateStructure, squared_norm, zero_padding


class EquilibriumRegularizer(Configured):
    """A penalty on f at its equilibrium, which is held constant.

    Subclasses implement `penalty`. They set `differentiates_jacobian` if the gradient
    of the penalty differentiates products with the Jacobian. `DEQ` adds the result to
    the losses in training.

    Args:
        probability: Float in (0, 1]. Fraction of training steps that add the penalty;
            other steps do not compute it, except under XLA. Defaults to `1.0`.

    Attributes:
        differentiates_jacobian: Boolean. Whether the gradient differentiates products
            with the Jacobian. Defaults to `False`.

    Call arguments:
        linearization: A `Linearization` of f at z*.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64.
    """

    differentiates_jacobian = False

    def __init__(self, probability: float = 1.0) -> None:
        self.probability: float | tf.Tensor = check_positive_fraction(
            "probability", probability
        )

    def with_probability(self, probability: tf.Tensor) -> "EquilibriumRegularizer":
        """Returns a copy that is drawn with another probability, a scalar tensor."""
        other = copy.copy(self)
        other.probability = probability
        return other

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


@keras.saving.register_keras_serializable(package="deq_keras")
class ResidualRegularizer(EquilibriumRegularizer):
    """Penalizes the change of one more step after the solve.

    Let z be the state after the solve:

        weight * mean_b max(0, r^2 - margin^2),    r = |f(z) - z| / |f(z)|

    z and the divisor |f(z)| are held constant, so a larger f(z) does not lower the
    penalty. Its gradient is thus d|f(z) - z|^2 / |f(z)|^2, and differs from finite
    differences of the penalty: these also change z, because the solve depends on the
    weights, and the divisor.

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
        return arguments_of(self, ResidualRegularizer)


def excess_residual(linearization: Linearization, margin: float) -> tf.Tensor:
    """Returns the mean of max(0, r^2 - margin^2) for relative residuals r."""
    structure = StateStructure(linearization.value)
    value = structure.to_matrix(linearization.value)
    residual = value - structure.to_matrix(linearization.point)
    # The scale is a constant: growing f(z) must not lower the penalty.
    scale = tf.stop_gradient(squared_norm(value))
    squares = squared_norm(residual) / tf.where(scale > 0, scale, 1.0)
    return tf.reduce_mean(tf.nn.relu(squares - margin**2))


@keras.saving.register_keras_serializable(package="deq_keras")
class ContractionRegularizer(EquilibriumRegularizer):
    """Penalizes growth in the least damped directions, and the residual.

    With z* the solver's best iterate, held constant, and J = df/dz there,

        weight * mean_b max(0, |J^T w|^2 - margin^2)
            + residual_weight * mean_b max(0, r^2 - residual_margin^2)

    where r = |f(z*) - z*| / |f(z*)| is the relative residual. `num_iterations` products
    of J^T with noise yield the unit vector w, the direction that J damps least. |J^T w|
    is near the spectral radius if J is nearly normal. If J carries information from
    position to position undamped, |J^T w| is near 1 for as long as the information
    travels, and is penalized, although the spectral radius is 0. The penalty is zero
    below the margins. The Frobenius norm of `JacobianRegularizer` weights all
    directions equally, and thus hardly the few that prevent convergence. The second
    term, a `ResidualRegularizer`, moves f(z*) to the state where the solver stopped.
    `DEQ` selects this penalty by default for gradients that assume an equilibrium.

    Args:
        weight: Float >= 0. Weight of the squared growth, near the squared spectral
            radius. Defaults to `3.0`.
        margin: Float >= 0. Growth without a penalty. Defaults to `0.88`.
        residual_weight: Float >= 0. Weight of the squared relative residual. Defaults
            to `10.0`.
        residual_margin: Float >= 0. Relative residual without a penalty. Defaults to
            `0.03`.
        num_iterations: Positive integer. Vector-Jacobian products that find w. Defaults
            to `6`.
        probability: Float in (0, 1]. Fraction of training steps that add the penalty;
            other steps do not compute it, except under XLA. Defaults to `1.0`.

    Call arguments:
        linearization: A `Linearization` of f at z*.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64.

    Example:

    >>> regularizer = deq_keras.regularizers.ContractionRegularizer(weight=0.3)
    """

    def __init__(
        self,
        weight: float = 3.0,
        margin: float = 0.88,
        residual_weight: float = 10.0,
        residual_margin: float = 0.03,
        num_iterations: int = 6,
        probability: float = 1.0,
    ) -> None:
        super().__init__(probability)
        self.weight = check_non_negative("weight", weight)
        self.margin = check_non_negative("margin", margin)
        self.residual_weight = check_non_negative("residual_weight", residual_weight)
        self.residual_margin = check_non_negative("residual_margin", residual_margin)
        self.num_iterations = check_count("num_iterations", num_iterations)
        self.differentiates_jacobian = self.weight > 0

    def penalty(self, linearization: Linearization, seed: tf.Tensor) -> tf.Tensor:
        terms = tf.zeros((), loss_dtype(linearization))
        if self.weight:
            growth = squared_growth(linearization, seed, self.num_iterations)
            terms += self.weight * tf.reduce_mean(tf.nn.relu(growth - self.margin**2))
        if self.residual_weight:
            excess = excess_residual(linearization, self.residual_margin)
            terms += self.residual_weight * excess
        return terms

    def get_config(self) -> Config:
        return arguments_of(self, ContractionRegularizer)


def squared_growth(
    linearization: Linearization, seed: tf.Tensor, num_iterations: int
) -> tf.Tensor:
    """Returns |J^T w|^2 of each sample, where w is the direction that J damps least.

    Args:
        linearization: A `Linearization`.
        seed: Int32 tensor of shape `(2,)`.
        num_iterations: Integer. Products with J^T that find w.
    """
    structure = StateStructure(linearization.value)
    product = functools.partial(matrix_vjp, linearization, structure)
    noise = normal_like(linearization.value, fold_in(seed, 1))
    # With a loop, the products that find w are traced once and have no gradient.
    (direction,) = tf.while_loop(
        lambda direction: True,
        lambda direction: (_normalize(product(direction)),),
        (_normalize(structure.to_matrix(noise)),),
        maximum_iterations=num_iterations,
    )
    return squared_norm(product(tf.stop_gradient(direction)))


def _normalize(matrix: tf.Tensor) -> tf.Tensor:
    norm = tf.sqrt(squared_norm(matrix))
    return matrix / tf.where(norm > 0, norm, 1.0)


@keras.saving.register_keras_serializable(package="deq_keras")
class JacobianRegularizer(EquilibriumRegularizer):
    """Penalizes the Frobenius norm of df/dz at the equilibrium.

        weight * mean_v |v^T J(z*)|^2 / (B D),        v ~ N(0, I)

    This is an unbiased (Hutchinson) estimate of `weight` times the batch mean of
    |J|_F^2 / D, where D is the number of entries of one sample's state. Positions that
    are padding count neither in J nor in B D. z* is held constant: the penalty has a
    gradient only through J. The penalty keeps the Jacobian small, so that the solver
    needs fewer evaluations and the implicit gradient stays well conditioned.

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

    differentiates_jacobian = True

    def __init__(
        self, weight: float = 1.0, num_probes: int = 1, probability: float = 1.0
    ) -> None:
        super().__init__(probability)
        self.weight = check_non_negative("weight", weight)
        self.num_probes = check_count("num_probes", num_probes)

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
            products = zero_padding(linearization.vjp(probe), linearization.mask)
            products = tree.flatten(products)
            total += sum(ops.sum(ops.square(ops.cast(p, dtype))) for p in products)
        size, mask = ops.zeros((), dtype), linearization.mask
        for leaf in tree.flatten(linearization.value):
            entries = ops.cast(ops.size(leaf), dtype)
            if mask is not None and leaf.shape.rank > mask.shape.rank:
                entries *= ops.mean(ops.cast(mask, dtype))
            size += entries
        return total / (self.num_probes * ops.maximum(size, 1))

    def probe(self, value: Nest, seed: tf.Tensor) -> Nest:
        """Draws v ~ N(0, I), a nest like `value`."""
        return normal_like(value, seed)

    def get_config(self) -> Config:
        return arguments_of(self, JacobianRegularizer)


PENALTIES = (JacobianRegularizer, ContractionRegularizer, ResidualRegularizer)
