"""A mean that is NaN instead of zero before the first update."""

import keras
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
        total, count = nonfinite.finite_total(values, self.dtype)
        self.total.assign_add(total)
        self.count.assign_add(count)

    def result(self):
        return self.total / self.count

    def reset_state(self):
        self.total.assign(0.0)
        self.count.assign(0.0)
