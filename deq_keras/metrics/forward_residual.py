"""The residual of forward solves, with a warning about meaningless gradients."""

import warnings

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_positive
from deq_keras.metrics.running_mean import RunningMean


@keras.saving.register_keras_serializable(package="deq_keras")
class ForwardResidual(RunningMean):
    """The mean residual of forward solves. Warns once about unconverged training.

    The implicit function theorem only holds at an equilibrium. Far from it, implicit
    gradients are noise, which a loss curve does not show. Keras resets metrics between
    epochs and before an evaluation. The metric checks the training residual then.

    Args:
        threshold: Positive float. Mean relative residual above which to warn. Defaults
            to `0.1`.
        name: String. Name of the metric. Defaults to `"residual"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, threshold=0.1, name="residual", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.threshold = check_positive("threshold", threshold)
        self._has_warned = False
        self.exact_total = self.add_total("exact_total")
        self.exact_count = self.add_total("exact_count")

    def update_state(self, values, assumes_convergence=False):
        """Adds residuals.

        Args:
            values: Float tensor `(batch,)`. Non-finite residuals are ignored.
            assumes_convergence: Boolean. Whether a gradient is computed that is only
                valid near an equilibrium. Defaults to `False`.
        """
        total, count = nonfinite.finite_total(values, self.dtype)
        self.total.assign_add(total)
        self.count.assign_add(count)
        if assumes_convergence:
            self.exact_total.assign_add(total)
            self.exact_count.assign_add(count)

    def reset_state(self):
        # This is the first time after an epoch that Keras runs code of a layer. At the
        # end of an epoch, it runs only callbacks, which a layer cannot add. A compiled
        # step cannot raise Python warnings, and `result` also runs after every batch.
        if tf.executing_eagerly() and not self._has_warned:
            self._judge()
        super().reset_state()
        self.exact_total.assign(0.0)
        self.exact_count.assign(0.0)

    def get_config(self):
        return {**super().get_config(), "threshold": self.threshold}

    def _judge(self):
        count = float(ops.convert_to_numpy(self.exact_count))
        if count == 0:
            return
        mean = float(ops.convert_to_numpy(self.exact_total)) / count
        if mean <= self.threshold:
            return
        self._has_warned = True
        warnings.warn(
            f"Implicit gradients were taken at a mean relative residual of {mean:.2f} "
            f"({self.name}): the solver stopped far from an equilibrium, and such a "
            "gradient is noise. Train with gradient='truncated', which needs no "
            "equilibrium, or with regularizer='contraction', or give the solver a "
            "larger `max_iter`.",
            stacklevel=2,
        )
