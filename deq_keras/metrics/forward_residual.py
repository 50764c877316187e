"""The residual of forward solves, and a warning where training cannot use them."""

import warnings

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_positive
from deq_keras.metrics.running_mean import RunningMean


@keras.saving.register_keras_serializable(package="deq_keras")
class ForwardResidual(RunningMean):
    """The mean residual of forward solves. Warns, once, when implicit gradients were
    taken at residuals that make them meaningless.

    The implicit function theorem holds at an equilibrium. Far from one its gradient is
    noise, which a loss curve does not show. Keras resets metrics between epochs and
    before an evaluation; that is when the training residual is judged.

    Args:
        threshold: Float > 0. The mean relative residual from which on to warn.
            Defaults to `0.1`.
        name: String. Name of the metric. Defaults to `"residual"`.
        dtype: Dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, threshold=0.1, name="residual", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.threshold = check_positive("threshold", threshold)
        self._has_warned = False
        self.exact_total = self.add_variable((), "zeros", name="exact_total")
        self.exact_count = self.add_variable((), "zeros", name="exact_count")

    def update_state(self, values, assumes_convergence=False):
        """Adds residuals.

        Args:
            values: Float tensor `(batch,)`. Those that are not finite are left out.
            assumes_convergence: Boolean. Whether a gradient is computed there that is
                noise far from an equilibrium.
        """
        total, count = nonfinite.finite_total(values, self.dtype)
        self.total.assign_add(total)
        self.count.assign_add(count)
        if assumes_convergence:
            self.exact_total.assign_add(total)
            self.exact_count.assign_add(count)

    def reset_state(self):
        # The end of an epoch would be the place, but Keras calls only callbacks then,
        # which a layer cannot add; a Python warning cannot come from the compiled step;
        # and `result` is asked for after every batch too. The first moment after an
        # epoch at which Keras runs code of a layer is this one.
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
