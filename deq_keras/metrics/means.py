"""Means that equilibrium layers record."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core import nonfinite


@keras.saving.register_keras_serializable(package="deq_keras")
class RunningMean(keras.metrics.Metric):
    """Mean of the finite values since the last reset, or NaN without values.

    `keras.metrics.Mean` returns 0 without values, which would look like a perfect
    residual. A gradient function can update this metric.

    Args:
        name: String. Name of the metric. Defaults to `"running_mean"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Example:

    >>> metric = deq_keras.metrics.RunningMean()
    >>> metric.update_state([1.0, 3.0])
    >>> float(metric.result())
    2.0
    """

    def __init__(self, name: str = "running_mean", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_total("total")
        self.count = self.add_total("count")

    def add_total(self, name: str) -> keras.Variable:
        """Returns a variable, the sum over replicas of what is added to it.

        In the call of a layer with mixed precision, Keras reads the variables of
        `add_variable` in half precision, so that sums would stop growing.

        Args:
            name: String. Name of the variable.
        """
        with keras.name_scope(self.name):
            return keras.Variable(
                keras.initializers.Zeros(),
                shape=(),
                dtype=self.dtype,
                trainable=False,
                autocast=False,
                aggregation="sum",
                synchronization="on_read",
                name=name,
            )

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        del sample_weight
        values = ops.cast(values, self.dtype)
        total, count = nonfinite.finite_total(values, self.dtype)
        self.total.assign_add(total)
        self.count.assign_add(count)

    def result(self) -> Any:
        return self.total / self.count

    def reset_state(self) -> None:
        self.total.assign(0.0)
        self.count.assign(0.0)


@keras.saving.register_keras_serializable(package="deq_keras")
class StepMean(RunningMean):
    """A `RunningMean` that is excluded from the logs of steps that do not update it.

    Keras reads the results of all metrics of a layer in every step, and at the end of
    an epoch or an evaluation. A metric that only training updates would be NaN after an
    evaluation step, and the reverse.

    Args:
        name: String. Name of the metric. Defaults to `"step_mean"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Attributes:
        is_updated: Boolean. Whether the current step updates the metric. Set when the
            step is traced.

    Example:

    >>> metric = deq_keras.metrics.StepMean()
    >>> metric.result()
    {}
    >>> metric.update_state([1.0, 3.0])
    >>> float(metric.result())
    2.0
    """

    def __init__(self, name: str = "step_mean", dtype: Any = "float32") -> None:
        super().__init__(name=name, dtype=dtype)
        self.is_updated = True

    def result(self) -> Any:
        # `is_updated` is only valid while a step is traced. Elsewhere, an empty metric
        # indicates that no step updates it: Keras resets metrics before an evaluation.
        has_result = self.is_updated
        if tf.executing_eagerly():
            has_result = float(tf.convert_to_tensor(self.count)) > 0
        return super().result() if has_result else {}


@keras.saving.register_keras_serializable(package="deq_keras")
class GradientError(StepMean):
    """The mean relative error of implicit gradients, and its two parts.

    The implicit function theorem holds only at an equilibrium and for a solved adjoint
    equation. Otherwise implicit gradients are noise, which a loss curve does not show.
    A small residual does not bound the error of a slow solve: each step changes little,
    but many steps are missing. The metric therefore has estimated errors. They lack
    the change of df/dz between the result and the equilibrium: the true error is often
    larger, and `deq_keras.diagnostics.gradient_quality` measures it.

    Args:
        name: String. Name of the metric. Defaults to `"gradient_error"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Attributes:
        forward: `RunningMean` of the errors that forward solves cause.
        adjoint: `RunningMean` of the errors that adjoint solves cause.
    """

    def __init__(self, name: str = "gradient_error", dtype: Any = "float32") -> None:
        super().__init__(name, dtype)
        self.forward = RunningMean("forward", dtype)
        self.adjoint = RunningMean("adjoint", dtype)

    def update_state(self, forward_error: Any, adjoint_error: Any) -> None:  # type: ignore[override]
        """Adds the errors of a batch.

        Args:
            forward_error: Float scalar in [0, 1]. Relative error that the forward solve
                causes.
            adjoint_error: Float scalar in [0, 1]. The same for the adjoint solve.
        """
        super().update_state(1.0 - (1.0 - forward_error) * (1.0 - adjoint_error))
        self.forward.update_state(forward_error)
        self.adjoint.update_state(adjoint_error)

    def reset_state(self) -> None:
        super().reset_state()
        self.forward.reset_state()
        self.adjoint.reset_state()
