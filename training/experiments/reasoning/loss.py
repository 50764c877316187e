"""The cross entropy of all weighted positions."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="deq_keras_training")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Computes the cross entropy of smoothed integer labels, averaged by weight.

    ```
    q = (1 - s) one_hot(y) + s / C,   loss = sum_i w_i (-q_i . log p_i) / sum_i w_i
    ```

    over all positions i of the batch, with C classes and sample weights w. Walls and
    padding have weight 0, so they do not dilute the gradient of the other positions.

    Args:
        label_smoothing: Float in [0, 1). The smoothing s. Defaults to `0.0`.
        **kwargs: Keyword arguments of `keras.losses.Loss`: `name` and `dtype`.

    Call arguments:
        y_true: Integer labels `(batch, *positions)`.
        y_pred: Logits `(batch, *positions, num_classes)`.
        sample_weight: Optional tensor `(batch, *positions)`.

    Returns:
        Scalar.

    Example:

    >>> loss = SmoothedCrossEntropy(label_smoothing=0.3)
    >>> logits = np.log([[[0.85, 0.15], [0.5, 0.5]]])
    >>> value = loss(np.array([[0, 1]]), logits, sample_weight=np.array([[1.0, 0.0]]))
    >>> round(float(value), 4)  # The entropy of 0.85 and 0.15: no less is possible.
    0.4227

    Reference:

    - Szegedy et al. (2016), "Rethinking the Inception Architecture for Computer Vision"
    """

    def __init__(self, label_smoothing=0.0, **kwargs):
        super().__init__(**{"reduction": "mean_with_sample_weight", **kwargs})
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        num_classes = y_pred.shape[-1]
        targets = ops.one_hot(
            ops.cast(y_true, "int32"), num_classes, dtype=y_pred.dtype
        )
        share = self.label_smoothing
        targets = (1.0 - share) * targets + share / num_classes
        return ops.categorical_crossentropy(targets, y_pred, from_logits=True)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
