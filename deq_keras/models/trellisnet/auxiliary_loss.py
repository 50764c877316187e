"""Losses of earlier layers, beside that of the last."""

import keras
from keras import ops

from deq_keras.checks import check_non_negative


@keras.saving.register_keras_serializable(package="deq_keras")
class AuxiliaryLoss(keras.layers.Layer):
    """Passes the losses of the last layer, and adds those of others in training.

    Args:
        weight: Float >= 0. What each of the others' means counts.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        losses: List of tensors `(batch, length)`, the last layer's first.
        training: Boolean.

    Returns:
        The first of the losses.
    """

    def __init__(self, weight, **kwargs):
        super().__init__(**kwargs)
        self.weight = check_non_negative("weight", weight)

    def call(self, losses, training=False):
        first, *others = losses
        if training and others:
            self.add_loss(self.weight * sum(ops.mean(loss) for loss in others))
        return first

    def get_config(self):
        return {**super().get_config(), "weight": self.weight}
