"""Means that equilibrium layers record."""

import warnings

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_positive


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

    def __init__(self, name="running_mean", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_total("total")
        self.count = self.add_total("count")

    def add_total(self, name):
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

    def update_state(self, values, sample_weight=None):
        del sample_weight
        values = ops.cast(values, self.dtype)
        self.add(*nonfinite.finite_total(values, self.dtype))

    def add(self, total, count):
        """Adds a sum of values and their number."""
        self.total.assign_add(total)
        self.count.assign_add(count)

    def result(self):
        return self.total / self.count

    def reset_state(self):
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

    def __init__(self, name="step_mean", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.is_updated = True

    def result(self):
        return super().result() if self._has_result() else {}

    def _has_result(self):
        # `is_updated` is only valid while a step is traced. Elsewhere, an empty metric
        # indicates that no step updates it: Keras resets metrics before an evaluation.
        if tf.executing_eagerly():
            return float(tf.convert_to_tensor(self.count)) > 0
        return self.is_updated


class WatchedMean(StepMean):
    """A mean that can warn once, at the end of an epoch or an evaluation.

    Subclasses implement `message`.

    Args:
        name: String. Name of the metric.
        dtype: Dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, name, dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self._has_warned = False
        self._is_compiled = False

    def add(self, total, count):
        self._is_compiled = not tf.executing_eagerly()
        super().add(total, count)

    def result(self):
        # After an epoch of compiled steps, Keras reads the results eagerly. Eager
        # steps read them after every batch, so only the next reset ends the epoch.
        if self._is_compiled:
            self._judge()
        return super().result()

    def reset_state(self):
        self._judge()
        super().reset_state()

    def message(self, mean):
        """Returns the text of the warning, or `None`. `mean` is a float."""
        raise NotImplementedError

    def _judge(self):
        # A compiled step cannot raise Python warnings.
        if self._has_warned or not tf.executing_eagerly():
            return
        if float(tf.convert_to_tensor(self.count)) == 0.0:
            return
        message = self.message(float(super().result()))
        if message is not None:
            self._has_warned = True
            warnings.warn(message, stacklevel=3)


@keras.saving.register_keras_serializable(package="deq_keras")
class GradientError(WatchedMean):
    """The mean relative error of implicit gradients. Warns once if it is large.

    The implicit function theorem holds only at an equilibrium and for a solved adjoint
    equation. Otherwise implicit gradients are noise, which a loss curve does not show.
    A small residual does not bound the error of a slow solve: each step changes little,
    but many steps are missing. The metric therefore judges estimated errors. They lack
    the change of df/dz between the result and the equilibrium: the true error is often
    larger, and `deq_keras.diagnostics.gradient_quality` measures it.

    Args:
        threshold: Positive float. Mean relative error above which to warn. Defaults to
            `0.25`.
        name: String. Name of the metric. Defaults to `"gradient_error"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, threshold=0.25, name="gradient_error", dtype="float32"):
        super().__init__(name, dtype)
        self.threshold = check_positive("threshold", threshold)
        self.forward = RunningMean("forward", dtype)
        self.adjoint = RunningMean("adjoint", dtype)

    def update_state(self, forward_error, adjoint_error):
        """Adds the errors of a batch.

        Args:
            forward_error: Float scalar in [0, 1]. Relative error that the forward solve
                causes.
            adjoint_error: Float scalar in [0, 1]. The same for the adjoint solve.
        """
        super().update_state(1.0 - (1.0 - forward_error) * (1.0 - adjoint_error))
        self.forward.update_state(forward_error)
        self.adjoint.update_state(adjoint_error)

    def reset_state(self):
        super().reset_state()
        self.forward.reset_state()
        self.adjoint.reset_state()

    def get_config(self):
        return {**super().get_config(), "threshold": self.threshold}

    def message(self, mean):
        if not mean > self.threshold:
            return None
        forward, adjoint = (
            float(metric.result()) for metric in (self.forward, self.adjoint)
        )
        remedies = []
        if forward >= adjoint / 2:
            remedies.append(
                "give `solver` a larger `max_iter` or a smaller `tol`, or use an "
                "Anderson or Broyden solver"
            )
        if adjoint >= forward / 2:
            remedies.append("use ImplicitGradient(GMRES(max_iter=...)) with more steps")
        return (
            f"Implicit gradients were taken with an estimated error of {mean:.0%} "
            f"({self.name}): {forward:.0%} from forward solves and {adjoint:.0%} from "
            "adjoint solves that stopped early, however small their residuals are. To "
            f"reduce it, {', and '.join(remedies)}. If that does not help, "
            "f hardly contracts: use regularizer='contraction' or gradient='neumann'."
        )
