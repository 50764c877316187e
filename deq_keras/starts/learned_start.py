"""The start that is trained."""

from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import tree

from deq_keras.serialization import Config
from deq_keras.starts.start import Start
from deq_keras.structure import Nest


@keras.saving.register_keras_serializable(package="deq_keras")
class LearnedStart(Start):
    """Starts from a vector of weights, the same at all positions of a leaf.

    Only gradients that see where a solve began train it: `UnrolledGradient`, and
    `TruncatedGradient` in steps without free steps. With others it stays what the
    initializer made it.

    Args:
        initializer: Name, config or `keras.initializers.Initializer` of the weights, of
            shape `(features,)`. Defaults to `"zeros"`.

    Example:

    >>> start = deq_keras.starts.LearnedStart("truncated_normal")
    """

    def __init__(
        self, initializer: str | Config | keras.initializers.Initializer = "zeros"
    ) -> None:
        self.initializer = keras.initializers.get(initializer)
        if self.initializer is None:
            raise ValueError(
                "`initializer` must be an initializer of Keras. Received: "
                f"initializer={initializer!r}."
            )

    def __call__(
        self,
        state: Nest,
        seed: tf.Tensor | None = None,
        learned: Sequence[tf.Tensor] | None = None,
    ) -> Nest:
        if learned is None:
            raise ValueError(
                "A learned start has weights, and this layer was built without. Give "
                "`start` when the layer is made."
            )
        leaves = [
            tf.zeros_like(leaf) + tf.cast(weights, leaf.dtype)
            for leaf, weights in zip(tree.flatten(state), learned, strict=True)
        ]
        return tree.pack_sequence_as(state, leaves)

    def get_config(self) -> Config:
        return {"initializer": keras.initializers.serialize(self.initializer)}
