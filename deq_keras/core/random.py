"""Random numbers as functions of a seed, and the random state of a layer."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_seed
from deq_keras.core.structure import Nest

_KEY = "seed_generator_state"


def as_seed(seed: int | tf.Tensor | None) -> tf.Tensor | None:
    """Returns a seed as an int32 tensor of shape `(2,)`, or `None`.

    Args:
        seed: Integer, int32 tensor of shape `(2,)`, or `None`.
    """
    if seed is None or tf.is_tensor(seed):
        return seed
    return tf.constant([check_seed("seed", seed), 0])


def normal_like(value: Nest, seed: tf.Tensor) -> Nest:
    """Returns a nest of standard normal tensors like `value`."""
    leaves = [
        tf.random.stateless_normal(
            tf.shape(leaf), tf.random.fold_in(seed, i), dtype=leaf.dtype
        )
        for i, leaf in enumerate(tree.flatten(value))
    ]
    return tree.pack_sequence_as(value, leaves)


class SavesRandomState:
    """Mixin: a layer that saves and restores the state of its `seed_generator`.

    Keras' own layers, such as `Dropout`, restart their random numbers when a model is
    loaded. The saved state is ignored if the layer was built with another seed.
    """

    seed: int | None

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        generator = getattr(self, "seed_generator", None)
        if generator is not None:
            store[_KEY] = keras.ops.convert_to_numpy(generator.state)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        # A file saved without this mixin lacks the key.
        variables = {k: store[k] for k in store.keys() if k != _KEY}
        super().load_own_variables(variables)  # type: ignore[misc]
        generator = getattr(self, "seed_generator", None)
        if generator is None or _KEY not in store.keys():
            return
        saved = np.asarray(store[_KEY])
        own = keras.ops.convert_to_numpy(generator.state)
        if self.seed is None or saved[0] == own[0]:
            generator.state.assign(saved)
