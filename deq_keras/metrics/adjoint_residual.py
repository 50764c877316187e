"""The residual of adjoint solves, with a warning about inaccurate gradients."""

import warnings

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_positive
from deq_keras.metrics.step_mean import StepMean


@keras.saving.register_keras_serializable(package="deq_keras")
class AdjointResidual(StepMean):
    """The mean residual of adjoint solves. Warns once about inaccurate gradients.

    A small residual does not bound the error of a slow solve: each step changes little,
    but many steps are missing. The metric therefore checks the estimated error. Keras
    resets metrics between epochs and before an evaluation, which is when the metric can
    warn.

    Args:
        threshold: Positive float. Mean relative error above which to warn. Defaults to
            `0.25`.
        name: String. Name of the metric. Defaults to `"adjoint_residual"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, threshold=0.25, name="adjoint_residual", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.threshold = check_positive("threshold", threshold)
        self._has_warned = False
        self.error_total = self.add_total("error_total")
        self.error_count = self.add_total("error_count")

    def update_state(self, values, errors=None):
        """Adds the residuals of a batch.

        Args:
            values: Float tensor `(batch,)`. Non-finite residuals are ignored.
            errors: Optional float tensor `(batch,)`. Estimated relative errors. Pass
                `None` for gradients that are approximate by design.
        """
        super().update_state(values)
        if errors is not None:
            total, count = nonfinite.finite_total(errors, self.dtype)
            self.error_total.assign_add(total)
            self.error_count.assign_add(count)

    def reset_state(self):
        if tf.executing_eagerly() and not self._has_warned:
            self._judge()
        super().reset_state()
        self.error_total.assign(0.0)
        self.error_count.assign(0.0)

    def get_config(self):
        return {**super().get_config(), "threshold": self.threshold}

    def _judge(self):
        count = float(ops.convert_to_numpy(self.error_count))
        if count == 0:
            return
        mean = float(ops.convert_to_numpy(self.error_total)) / count
        if mean <= self.threshold:
            return
        self._has_warned = True
        warnings.warn(
            "Implicit gradients were taken with adjoint solves that are far from done: "
            f"their mean error is about {mean:.0%} ({self.name}), whatever their "
            "residuals are. Give the adjoint solver a larger `max_iter` or a smaller "
            "`tol`, as in ImplicitGradient(solver=...), use an Anderson or Broyden "
            "solver, or train with gradient='truncated' or regularizer='contraction'.",
            stacklevel=2,
        )
