"""Perplexity of a language model whose outputs are losses."""

import keras
from keras import ops

from deq_keras.metrics.running_mean import RunningMean


@keras.saving.register_keras_serializable(package="deq_keras")
class Perplexity(RunningMean):
    """Exponential of the mean loss of all tokens since the last reset, or NaN.

    For models whose outputs are the losses of tokens in nats, such as
    `deq_keras.models.NextTokenLossModel`. `keras_hub.metrics.Perplexity` requires
    logits of the whole vocabulary.

    Args:
        name: String. Name of the metric. Defaults to `"perplexity"`.
        dtype: Dtype of the result. Defaults to `"float32"`.

    Example:

    >>> metric = deq_keras.metrics.Perplexity()
    >>> metric.update_state(None, np.log([2.0, 8.0]))
    >>> round(float(metric.result()), 3)
    4.0
    """

    def __init__(self, name="perplexity", dtype="float32"):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds losses.

        Args:
            y_true: Ignored.
            y_pred: Float tensor `(batch, length)`. Losses in nats.
            sample_weight: Optional float tensor `(batch,)`, `(batch, 1)` or `(batch,
                length)`.
        """
        del y_true
        losses = ops.cast(y_pred, self.dtype)
        weights = ops.ones_like(losses)
        if sample_weight is not None:
            weight = ops.cast(sample_weight, self.dtype)
            missing = len(losses.shape) - len(weight.shape)
            # Trailing axes, so that a weight per sample never meets the positions.
            weights *= ops.reshape(weight, (*ops.shape(weight), *[1] * missing))
        self.total.assign_add(ops.sum(weights * losses))
        self.count.assign_add(ops.sum(weights))

    def result(self):
        return ops.exp(super().result())
