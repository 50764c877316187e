"""Penalties whose weight is adapted until a measurement meets a target."""

import math

import keras
import tensorflow as tf

from deq_keras.core import nonfinite, serialization
from deq_keras.core.checks import check_count, check_positive
from deq_keras.core.linearization import Linearization
from deq_keras.core.random import fold_in
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.regularizers.penalties import (
    PENALTIES,
    ResidualRegularizer,
    squared_growth,
    squared_residual,
)
from deq_keras.regularizers.regularizer import EquilibriumRegularizer

# Each step clips the ratio of measurement and target to [1 / this, this].
_LARGEST_RATIO = 4.0


class EquilibriumConstraint(EquilibriumRegularizer):
    """Base class of penalties whose weight is adapted in training.

        penalty = m * regularizer
        m <- m * (measurement / target)^rate    after each training step

    The multiplier m starts at 1. It rises if the measurement is above its target and
    falls if it is below, so that the penalty is only as strong as the target requires.
    (This is gradient ascent in log m, as for a Lagrange multiplier.) `DEQ` saves m with
    the weights and logs it as `_multiplier`. A new value of m does not recompile the
    training step.

    The gradient of the penalty updates m. Replicas of a `tf.distribute.Strategy` share
    one m, which depends on the measurements of all their samples. With a `probability`
    below 1, replicas draw independently; m changes if any replica measures.

    Subclasses implement `squared_measurements`.

    Args:
        target: Float > 0. Target of the measurement.
        regularizer: The penalty. A name, a config dict or an `EquilibriumRegularizer`.
        rate: Float > 0. Speed of the multiplier. At `0.01`, it doubles in 100 steps if
            the measurement is twice the target, and in 50 steps if it is four times the
            target or more. Defaults to `0.01`.
        max_multiplier: Float > 1. The multiplier stays between 1 / `max_multiplier` and
            this. Defaults to `100.0`.
        probability: Float in (0, 1]. Fraction of training steps that add the penalty
            and the measurement. Defaults to `1.0`.
    """

    def __init__(
        self,
        target: float,
        regularizer: str | Config | EquilibriumRegularizer,
        rate: float = 0.01,
        max_multiplier: float = 100.0,
        probability: float = 1.0,
    ) -> None:
        super().__init__(probability)
        self.target = check_positive("target", target)
        self.regularizer = serialization.get(
            regularizer, EquilibriumRegularizer, PENALTIES, "regularizer"
        )
        self.rate = check_positive("rate", rate)
        self.max_multiplier = check_positive("max_multiplier", max_multiplier)
        if self.max_multiplier <= 1:
            raise ValueError(
                "`max_multiplier` must be larger than 1, where the multiplier starts. "
                f"Received: max_multiplier={max_multiplier}."
            )
        if isinstance(self.regularizer, EquilibriumConstraint):
            raise ValueError(
                "The `regularizer` of a constraint must be a plain penalty. "
                f"Received: regularizer={self.regularizer!r}."
            )

    @property
    def differentiates_jacobian(self) -> bool:
        return self.regularizer.differentiates_jacobian

    def penalty(self, linearization: Linearization, seed: tf.Tensor) -> tf.Tensor:
        return self.regularizer(linearization, fold_in(seed, 1))

    def measured_penalty(
        self, linearization: Linearization, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the penalty at m = 1, the sum of the squared measurements, and the
        number of samples that have one: three scalars.

        Args:
            linearization: A `Linearization` of f at z*. Samples that did not have the
                budget of the solver have a residual of zero and are ignored.
            seed: Int32 tensor of shape `(2,)`.
        """

        def drawn() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            of_measurement = fold_in(seed, 2)
            squares = self.squared_measurements(linearization, of_measurement)
            squares = tf.where(squares > 0, tf.stop_gradient(squares), math.nan)
            total, count = nonfinite.finite_total(squares, "float32")
            return self.penalty(linearization, seed), total, count

        zero = tf.zeros(())
        return self.if_drawn(drawn, (self.none(linearization), zero, zero), seed)

    def next_multiplier(
        self, multiplier: tf.Tensor, total: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        """Returns the multiplier of the next step.

        Args:
            multiplier: Float32 scalar tensor. The multiplier of this step.
            total: Float32 scalar tensor. The sum of the squared measurements.
            count: Float32 scalar tensor. Number of measurements. If it is zero, the
                multiplier does not change.
        """
        ratio = tf.sqrt(tf.math.divide_no_nan(total, count)) / self.target
        ratio = tf.clip_by_value(ratio, 1 / _LARGEST_RATIO, _LARGEST_RATIO)
        change = tf.where(count > 0, tf.pow(ratio, self.rate), 1.0)
        return tf.clip_by_value(
            multiplier * change, 1 / self.max_multiplier, self.max_multiplier
        )

    def squared_measurements(
        self, linearization: Linearization, seed: tf.Tensor
    ) -> tf.Tensor:
        """Returns the squared measurement of each sample, `(batch,)`."""
        raise NotImplementedError

    def get_config(self) -> Config:
        return arguments_of(self, EquilibriumConstraint)


@keras.saving.register_keras_serializable(package="deq_keras")
class ResidualConstraint(EquilibriumConstraint):
    """Adapts a penalty so that the solver reaches a residual within its budget.

        penalty = m * regularizer
        m <- m * (r / target)^rate    after each training step

    where r is the root mean square of the relative residual |f(z*) - z*| / |f(z*)| of
    the samples. With a `TruncatedGradient` that has a tolerance, these are the samples
    that had the budget of the solver or, if the batch converged, all samples. See
    `EquilibriumConstraint`.

    Args:
        target: Float > 0. Target of the relative residual. Defaults to `0.01`.
        regularizer: The penalty. A name, a config dict or an `EquilibriumRegularizer`.
            Defaults to `None`, `ResidualRegularizer(margin=0.0)`.
        rate: Float > 0. Speed of the multiplier. Defaults to `0.01`: it doubles in 100
            steps if the residual is twice the target, and in 50 at most.
        max_multiplier: Float > 1. The multiplier stays between 1 / `max_multiplier` and
            this. Defaults to `100.0`.
        probability: Float in (0, 1]. Fraction of training steps that add the penalty
            and the measurement. Defaults to `1.0`.

    Call arguments:
        linearization: A `Linearization` of f at z*.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64: the penalty at m = 1.

    Example:

    >>> deq = deq_keras.layers.DEQ(
    ...     deq_keras.layers.DenseCell(16),
    ...     gradient="implicit",
    ...     regularizer=deq_keras.regularizers.ResidualConstraint(
    ...         target=1e-3, regularizer="jacobian"
    ...     ),
    ... )
    """

    def __init__(
        self,
        target: float = 0.01,
        regularizer: str | Config | EquilibriumRegularizer | None = None,
        rate: float = 0.01,
        max_multiplier: float = 100.0,
        probability: float = 1.0,
    ) -> None:
        if regularizer is None:
            regularizer = ResidualRegularizer(margin=0.0)
        super().__init__(target, regularizer, rate, max_multiplier, probability)

    def squared_measurements(
        self, linearization: Linearization, seed: tf.Tensor
    ) -> tf.Tensor:
        del seed
        return squared_residual(linearization)


@keras.saving.register_keras_serializable(package="deq_keras")
class SpectralRadiusConstraint(EquilibriumConstraint):
    """Adapts a Jacobian penalty to reach a target of the spectral radius.

        penalty = m * regularizer
        m <- m * (|J^T w| / target)^rate    after each training step

    with the root mean square of |J^T w| over the samples. The unit vector w is computed
    as in `ContractionRegularizer`: |J^T w| is near the spectral radius of J if J is
    nearly normal. See `EquilibriumConstraint`.

    Args:
        target: Float > 0. Target of the spectral radius. Defaults to `0.9`.
        regularizer: The penalty. A name, a config dict or an `EquilibriumRegularizer`.
            Defaults to `"jacobian"`.
        num_iterations: Positive integer. Vector-Jacobian products that find w. Defaults
            to `6`.
        rate: Float > 0. Speed of the multiplier. Defaults to `0.01`: it doubles in 100
            steps if |J^T w| is twice the target, and in 50 at most.
        max_multiplier: Float > 1. The multiplier stays between 1 / `max_multiplier` and
            this. Defaults to `100.0`.
        probability: Float in (0, 1]. Fraction of training steps that add the penalty
            and the measurement. Defaults to `1.0`.

    Call arguments:
        linearization: A `Linearization` of f at z*.
        seed: Int32 tensor of shape `(2,)`. Seeds all random draws.

    Returns:
        A scalar in float32 or, for a float64 state, float64: the penalty at m = 1.

    Example:

    >>> constraint = deq_keras.regularizers.SpectralRadiusConstraint(0.9)
    """

    def __init__(
        self,
        target: float = 0.9,
        regularizer: str | Config | EquilibriumRegularizer = "jacobian",
        num_iterations: int = 6,
        rate: float = 0.01,
        max_multiplier: float = 100.0,
        probability: float = 1.0,
    ) -> None:
        super().__init__(target, regularizer, rate, max_multiplier, probability)
        self.num_iterations = check_count("num_iterations", num_iterations)

    def squared_measurements(
        self, linearization: Linearization, seed: tf.Tensor
    ) -> tf.Tensor:
        return squared_growth(linearization, seed, self.num_iterations)

    def get_config(self) -> Config:
        return {"num_iterations": self.num_iterations, **super().get_config()}
