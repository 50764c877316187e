"""Losses of the class of every pixel."""

import keras
from keras import ops

from ...data.segmentation import IGNORED
from .replicas import gathered, part_of_loss, summed


@keras.saving.register_keras_serializable(package="deq_keras_training")
class PixelCrossEntropy(keras.losses.Loss):
    """Cross entropy of the pixels of a batch, weighted by their class.

    ```
    loss = sum_i w[y_i] l_i / sum_i w[y_i],   l_i = -log softmax(x_i)[y_i]
    ```

    over all pixels i of the batch whose label is not ignored, as PyTorch's
    `CrossEntropyLoss` (which Keras' class weights, a mean over all samples, are not).
    It is zero where all are ignored. The batch is that of all replicas.

    Args:
        class_weights: List of a positive number for each class, or `None` for ones.
            Defaults to `None`.
        ignored: Integer. The label of ignored pixels. Defaults to `255`.
        **kwargs: `name` and `dtype`.

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
        # A scalar, whose sum it is.
        super().__init__(**{"reduction": "sum", **kwargs})
        self.class_weights = None if class_weights is None else list(class_weights)
        self.ignored = ignored

    def call(self, y_true, y_pred):
        losses, weights, _ = self._pixels(y_true, y_pred)
        # At least the smallest weight of a pixel: no pixel, no loss.
        total = ops.maximum(summed(ops.sum(weights)), min(self.class_weights or [1.0]))
        return part_of_loss(ops.sum(weights * losses) / total, ops.shape(y_true)[0])

    def _pixels(self, y_true, y_pred):
        """Returns losses and weights of all pixels, flat, and which are not ignored.

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
    """The mean of `PixelCrossEntropy`'s terms over the pixels of a batch that go worst.

    With p_i the probability of the class of pixel i, the mean of w[y_i] l_i over the
    pixels with p_i below

    ```
    max(threshold, p of rank min(keep, n - 1))
    ```

    of the n pixels that are not ignored, ranks counted from 0 at the smallest p: online
    hard example mining as in HRNet. The mean is not divided by the weights.

    Args:
        class_weights: See `PixelCrossEntropy`.
        threshold: Float in `(0, 1]`. Defaults to `0.9`.
        keep: Integer >= 0. Defaults to `131072`.
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
        # Ignored pixels come last.
        ranked = ops.sort(gathered(ops.where(is_valid, probabilities, 2.0)))
        num_valid = summed(ops.sum(ops.cast(is_valid, "int32")))
        rank = ops.maximum(ops.minimum(self.keep, num_valid - 1), 0)
        limit = ops.maximum(ranked[rank], self.threshold)
        is_hard = ops.cast(is_valid & (probabilities < limit), losses.dtype)
        count = ops.maximum(summed(ops.sum(is_hard)), 1.0)  # No pixel, no loss.
        loss = ops.sum(is_hard * weights * losses) / count
        return part_of_loss(loss, ops.shape(y_true)[0])

    def get_config(self):
        return {
            **super().get_config(),
            "threshold": self.threshold,
            "keep": self.keep,
        }
