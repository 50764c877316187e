"""The start at zero."""

from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import tree

from deq_keras.starts.start import Start
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class ZeroStart(Start):
    """Starts from zero, whatever the cell says.

    Example:

    >>> start = deq_keras.starts.ZeroStart()
    """

    def __call__(
        self,
        state: Nest,
        seed: tf.Tensor | None = None,
        learned: Sequence[tf.Tensor] | None = None,
    ) -> Nest:
        return tree.map_structure(tf.zeros_like, state)
