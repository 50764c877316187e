"""The residual of forward solves, and a warning where training cannot use them."""

import warnings

import keras
import tensorflow as tf
from keras import ops

from deq_keras.checks import check_positive
from deq_keras.metrics.running_mean import RunningMean


@keras.saving.register_keras_serializable("deq_keras")
class ForwardResidual(RunningMean):
    """The mean residual of forward solves. Warns, once, when implicit gradients were
    taken at residuals that make them meaningless.

    The implicit function theorem holds at an equilibrium. Far from one its gradient is
    noise, which a loss curve does not show. Keras resets metrics between epochs and
    before an evaluation; that is when the training residual is judged.

    Args:
        threshold: float > 0. The mean relative residual from which on to warn.
            Defaults to `0.1`.
        name: optional str. Name of the metric.
        dtype: dtype of the result. Defaults to `"float32"`.
    """

    def __init__(self, threshold=0.1, name="residual", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.threshold = check_positive("threshold", threshold)
        self._has_warned = False
        self.exact_total = self.add_variable((), "zeros", name="exact_total")
        self.exact_count = self.add_variable((), "zeros", name="exact_count")

    def update_state(self, values, is_exact=False):
        """Adds residuals.

        Args:
            values: float tensor `(batch,)`. Non-finite ones are left out: the share of
                converged samples shows them.
            is_exact: bool. Whether the exact implicit gradient is taken there.
        """
        is_finite = ops.isfinite(values)
        total = ops.sum(ops.cast(ops.where(is_finite, values, 0.0), self.dtype))
        count = ops.sum(ops.cast(is_finite, self.dtype))
        self.total.assign_add(total)
        self.count.assign_add(count)
        if is_exact:
            self.exact_total.assign_add(total)
            self.exact_count.assign_add(count)

    def reset_state(self):
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
            "gradient is noise. Train with gradient='neumann', "
            "regularizer='contraction' (the defaults of DEQ), or give the "
            "solver a larger `max_iter`.",
            stacklevel=2,
        )
