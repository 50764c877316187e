"""The start that the cell says."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from deq_keras.starts.start import Start
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class CellStart(Start):
    """Starts from the cell's own `initial_state`, which may depend on the injection.

    Example:

    >>> start = deq_keras.starts.CellStart()
    """

    def __call__(
        self,
        state: Nest,
        seed: tf.Tensor | None = None,
        learned: Sequence[tf.Tensor] | None = None,
    ) -> Nest:
        return state
