"""Means that equilibrium layers record."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from deq_keras.core import nonfinite, replicas


class Sums:
    """The totals and counts of several means, in one variable.

    Each variable costs a step time, and more with XLA.

    Args:
        size: Positive integer. Number of means.
        dtype: Dtype of the sums.

    Attributes:
        variable: `keras.Variable` `(size, 2)`, the sum over replicas of what is added.
    """

    def __init__(self, size: int, dtype: Any) -> None:
        # In the call of a layer with mixed precision, Keras reads the variables of
        # `add_variable` in half precision, so that sums would stop growing.
        self.variable = keras.Variable(
            keras.initializers.Zeros(),
            shape=(size, 2),
            dtype=dtype,
            trainable=False,
            autocast=False,
            aggregation="sum",
            synchronization="on_read",
            name="sums",
        )
        self._size = size
        self._num_rows = 0

    def next_row(self) -> int:
        """Returns a row that no mean has yet."""
        self._num_rows += 1
        return self._num_rows - 1

    def read(self, row: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns total and count of a mean."""
        # Slices would take three times as many operations.
        total, count = tf.unstack(tf.unstack(tf.convert_to_tensor(self.variable))[row])
        return total, count

    def add(self, values: dict[int, Any]) -> None:
        """Adds the finite values of several means, in one step.

        Args:
            values: Maps the row of a mean to its values: a scalar, or a tensor of as
                many values as the other tensors have.
        """
        # Each sum starts kernels of its own, so all tensors are summed as one matrix,
        # and all scalars as another.
        dtype = self.variable.dtype
        tensors = {row: tf.cast(one, dtype) for row, one in values.items()}
        rows: list[int] = []
        sums = []
        for is_scalar in (True, False):
            group = {
                k: v for k, v in tensors.items() if (v.shape.rank == 0) is is_scalar
            }
            if group:
                rows += group
                matrix = tf.stack([tf.reshape(one, [-1]) for one in group.values()])
                sums.append(tf.stack(nonfinite.finite_total(matrix, dtype, 1), axis=1))
        self._add_rows(rows, tf.concat(sums, axis=0))

    def add_sums(self, row: int, total: Any, count: Any) -> None:
        """Adds to the total and the count of one mean."""
        self._add_rows([row], tf.cast(tf.stack([[total, count]]), self.variable.dtype))

    def _add_rows(self, rows: list[int], sums: tf.Tensor) -> None:
        """Adds `sums` `(len(rows), 2)` to some rows."""
        sources = [rows.index(i) if i in rows else len(rows) for i in range(self._size)]
        padded = tf.pad(sums, [[0, 1], [0, 0]])  # The other rows get zeros.
        self.variable.assign_add(tf.gather(padded, sources))

    def reset(self, row: int) -> None:
        """Sets total and count of a mean to zero."""
        keeps = np.arange(self._size)[:, None] != row
        for component in replicas.components(self.variable):
            component.assign(tf.where(keeps, component, tf.zeros_like(component)))


@keras.saving.register_keras_serializable(package="deq_keras")
class RunningMean(keras.metrics.Metric):
    """Mean of the finite values since the last reset, or NaN without values.

    `keras.metrics.Mean` returns 0 without values, which would look like a perfect
    residual. A gradient function can update this metric.

    Args:
        name: String. Name of the metric. Defaults to `"running_mean"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
        sums: `Sums` with a free row, which others share. Defaults to `None`, its own.

    Example:

    >>> metric = deq_keras.metrics.RunningMean()
    >>> metric.update_state([1.0, 3.0])
    >>> float(metric.result())
    2.0
    """

    _num_means = 1

    def __init__(
        self,
        name: str = "running_mean",
        dtype: Any = "float32",
        sums: Sums | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if sums is None:
            with keras.name_scope(self.name):
                sums = Sums(self._num_means, self.dtype)
            # Keras finds the variables of a metric among its attributes.
            self.variable = sums.variable
        self._sums, self._row = sums, sums.next_row()

    @property
    def total(self) -> tf.Tensor:
        """The sum of the values."""
        return self._sums.read(self._row)[0]

    @property
    def count(self) -> tf.Tensor:
        """The number of values, or the sum of their weights."""
        return self._sums.read(self._row)[1]

    def additions(self, values: Any) -> dict[int, Any]:
        """Returns what `update_state` adds, for `Sums.add`."""
        return {self._row: values}

    def add(self, total: Any, count: Any) -> None:
        """Adds values.

        Args:
            total: Float scalar. Their sum.
            count: Float scalar. Their number, or the sum of their weights.
        """
        self._sums.add_sums(self._row, total, count)

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        del sample_weight
        self._sums.add(self.additions(values))

    def result(self) -> Any:
        total, count = self._sums.read(self._row)
        return total / count

    def reset_state(self) -> None:
        self._sums.reset(self._row)


@keras.saving.register_keras_serializable(package="deq_keras")
class StepMean(RunningMean):
    """A `RunningMean` that is excluded from the logs of steps that do not update it.

    Keras reads the results of all metrics of a layer in every step, and at the end of
    an epoch or an evaluation. A metric that only training updates would be NaN after an
    evaluation step, and the reverse.

    Args:
        name: String. Name of the metric. Defaults to `"step_mean"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
        sums: See `RunningMean`.

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

    def __init__(
        self,
        name: str = "step_mean",
        dtype: Any = "float32",
        sums: Sums | None = None,
    ) -> None:
        super().__init__(name, dtype, sums)
        self.is_updated = True

    def result(self) -> Any:
        # `is_updated` is only valid while a step is traced. Elsewhere, an empty metric
        # indicates that no step updates it: Keras resets metrics before an evaluation.
        has_result = self.is_updated
        if tf.executing_eagerly():
            has_result = float(self.count) > 0
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
        sums: See `RunningMean`.

    Attributes:
        forward: `RunningMean` of the errors that forward solves cause.
        adjoint: `RunningMean` of the errors that adjoint solves cause.
    """

    _num_means = 3

    def __init__(
        self,
        name: str = "gradient_error",
        dtype: Any = "float32",
        sums: Sums | None = None,
    ) -> None:
        super().__init__(name, dtype, sums)
        self.forward = RunningMean("forward", dtype, self._sums)
        self.adjoint = RunningMean("adjoint", dtype, self._sums)

    def update_state(self, forward_error: Any, adjoint_error: Any) -> None:  # type: ignore[override]
        """Adds the errors of a batch.

        Args:
            forward_error: Float scalar in [0, 1]. Relative error that the forward solve
                causes.
            adjoint_error: Float scalar in [0, 1]. The same for the adjoint solve.
        """
        self._sums.add(self.additions(forward_error, adjoint_error))

    def additions(self, forward_error: Any, adjoint_error: Any) -> dict[int, Any]:  # type: ignore[override]
        error = 1.0 - (1.0 - forward_error) * (1.0 - adjoint_error)
        return {
            **super().additions(error),
            **self.forward.additions(forward_error),
            **self.adjoint.additions(adjoint_error),
        }

    def reset_state(self) -> None:
        super().reset_state()
        self.forward.reset_state()
        self.adjoint.reset_state()
