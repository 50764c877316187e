"""The start that is drawn."""

from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import tree

from deq_keras.checks import check_positive
from deq_keras.draws import normal_like
from deq_keras.serialization import Config
from deq_keras.starts.start import Start
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class NormalStart(Start):
    """Starts from N(0, stddev^2), drawn for each entry of a sample's state.

    A model that reaches its answer from anywhere does not depend on where it starts.
    Without a seed, outside of training, it is the cell's own start.

    Args:
        stddev: Float > 0. Defaults to `1.0`.

    Example:

    >>> start = deq_keras.starts.NormalStart(stddev=0.3)

    Reference:

    - Anil et al. (2022), "Path Independent Equilibrium Models Can Better Exploit
      Test-Time Computation".
    """

    is_random = True

    def __init__(self, stddev: float = 1.0) -> None:
        self.stddev = check_positive("stddev", stddev)

    def __call__(
        self,
        state: Nest,
        seed: tf.Tensor | None = None,
        learned: Sequence[tf.Tensor] | None = None,
    ) -> Nest:
        if seed is None:
            return state
        return tree.map_structure(
            lambda leaf: tf.constant(self.stddev, leaf.dtype) * leaf,
            normal_like(state, seed),
        )

    def get_config(self) -> Config:
        return {"stddev": self.stddev}
