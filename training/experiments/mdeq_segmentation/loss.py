"""Losses for classes of pixels, over all replicas of a training."""

import keras
import tensorflow as tf
from keras import ops

from ...data.segmentation import IGNORED


@keras.saving.register_keras_serializable(package="deq_keras_training")
class PixelCrossEntropy(keras.losses.Loss):
    """Computes the cross entropy of the pixels of a batch, weighted by class.

    ```
    loss = sum_i w[y_i] l_i / sum_i w[y_i],   l_i = -log softmax(x_i)[y_i]
    ```

    over all pixels i of the batch whose label is not ignored, like PyTorch's
    `CrossEntropyLoss`. (Keras' class weights average over all samples instead.) The
    loss is zero if all pixels are ignored. The batch includes all replicas.

    Args:
        class_weights: List of positive numbers, one per class. Defaults to `None`,
            equal weights of one.
        ignored: Integer. Label of ignored pixels. Defaults to `255`.
        **kwargs: Keyword arguments of `keras.losses.Loss`: `name` and `dtype`.

    Call arguments:
        y_true: Integer labels `(batch, height, width)`.
        y_pred: Logits `(batch, height, width, num_classes)`.

    Returns:
        Scalar, float32.

    Example:

    >>> loss = PixelCrossEntropy([1.0, 3.0])
    >>> round(float(loss(np.array([[[1, 255]]]), np.zeros((1, 1, 2, 2)))), 4)
    0.6931
    """

    def __init__(self, class_weights=None, ignored=IGNORED, **kwargs):
        # `call` returns a scalar, which the sum does not change.
        super().__init__(**{"reduction": "sum", **kwargs})
        self.class_weights = None if class_weights is None else list(class_weights)
        self.ignored = ignored

    def call(self, y_true, y_pred):
        losses, weights, _ = self._pixels(y_true, y_pred)
        # Bounds the sum by the smallest weight, for zero loss without pixels.
        total = ops.maximum(_sum(ops.sum(weights)), min(self.class_weights or [1.0]))
        return _part_of_loss(ops.sum(weights * losses) / total, ops.shape(y_true)[0])

    def _pixels(self, y_true, y_pred):
        """Returns losses, weights and a mask of valid pixels, each flattened.

        The weight of an ignored pixel is zero.
        """
        num_classes = y_pred.shape[-1]
        labels = ops.reshape(ops.cast(y_true, "int32"), (-1,))
        is_valid = ops.not_equal(labels, self.ignored)
        labels = ops.where(is_valid, labels, 0)
        logits = ops.reshape(y_pred, (-1, num_classes))
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        weights = ops.cast(is_valid, losses.dtype)
        if self.class_weights is not None:
            weights *= ops.take(
                ops.convert_to_tensor(self.class_weights, losses.dtype), labels
            )
        return losses, weights, is_valid

    def get_config(self):
        return {
            **super().get_config(),
            "class_weights": self.class_weights,
            "ignored": self.ignored,
        }


@keras.saving.register_keras_serializable(package="deq_keras_training")
class HardPixelCrossEntropy(PixelCrossEntropy):
    """Averages the terms of `PixelCrossEntropy` over the hardest pixels of a batch.

    With p_i the probability of the class of pixel i, computes the mean of w[y_i] l_i
    over the pixels with p_i below

    ```
    max(threshold, p of rank min(keep, n - 1))
    ```

    among the n pixels that are not ignored, with ranks from 0 at the smallest p. This
    is online hard example mining as in HRNet. The mean is not divided by the weights.

    Args:
        class_weights: See `PixelCrossEntropy`.
        threshold: Float in `(0, 1]`. Probability below which pixels always count.
            Defaults to `0.9`.
        keep: Non-negative integer. Number of hardest pixels that always count. Defaults
            to `131072`.
        **kwargs: See `PixelCrossEntropy`.

    Reference:
        [Shrivastava et al., 2016](https://arxiv.org/abs/1604.03540).
    """

    def __init__(self, class_weights=None, threshold=0.9, keep=131072, **kwargs):
        super().__init__(class_weights, **kwargs)
        self.threshold = threshold
        self.keep = keep

    def call(self, y_true, y_pred):
        losses, weights, is_valid = self._pixels(y_true, y_pred)
        probabilities = ops.stop_gradient(ops.exp(-losses))
        # Sorts ignored pixels last.
        ranked = ops.sort(_gather(ops.where(is_valid, probabilities, 2.0)))
        num_valid = _sum(ops.sum(ops.cast(is_valid, "int32")))
        rank = ops.maximum(ops.minimum(self.keep, num_valid - 1), 0)
        limit = ops.maximum(ranked[rank], self.threshold)
        is_hard = ops.cast(is_valid & (probabilities < limit), losses.dtype)
        count = ops.maximum(_sum(ops.sum(is_hard)), 1.0)  # Avoids division by zero.
        loss = ops.sum(is_hard * weights * losses) / count
        return _part_of_loss(loss, ops.shape(y_true)[0])

    def get_config(self):
        return {
            **super().get_config(),
            "threshold": self.threshold,
            "keep": self.keep,
        }


def _sum(value):
    """Returns the sum of a tensor over all replicas."""
    replica = _replica()
    return value if replica is None else replica.all_reduce("SUM", value)


def _gather(values):
    """Returns the concatenated vectors of all replicas."""
    replica = _replica()
    return values if replica is None else replica.all_gather(values, axis=0)


def _part_of_loss(loss, batch_size):
    """Scales a replica's summand of a loss for Keras' reduction.

    Keras sums the gradients of all replicas, and averages their losses weighted by
    their numbers of samples. In training, replicas have equal numbers, so the summand
    does not change.

    Args:
        loss: Scalar. The sum over all replicas is the loss of the whole batch.
        batch_size: Int32 scalar. Number of samples of this replica.
    """
    replica = _replica()
    if replica is None:
        return loss
    own = tf.cast(batch_size, loss.dtype)
    return tf.math.divide_no_nan(loss * _sum(own), own * replica.num_replicas_in_sync)


def _replica():
    """Returns the context of this replica, or `None` if it is the only replica or Keras
    builds a model for all of them."""
    replica = tf.distribute.get_replica_context()
    return replica if replica and replica.num_replicas_in_sync > 1 else None
