"""A mean of values that only some steps compute."""

import keras
import tensorflow as tf
from keras import ops

from deq_keras.metrics.running_mean import RunningMean


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
            return bool(ops.convert_to_numpy(self.count) > 0)
        return self.is_updated
