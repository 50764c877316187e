"""Random numbers that follow from a seed, whatever was drawn before."""

import tensorflow as tf
from keras import tree

from deq_keras.checks import check_seed
from deq_keras.structure import Nest


def as_seed(seed: int | tf.Tensor | None) -> tf.Tensor | None:
    """Returns a seed as an int32 tensor of shape `(2,)`, or `None`.

    Args:
        seed: Integer, int32 tensor of shape `(2,)`, or `None`.
    """
    if seed is None or tf.is_tensor(seed):
        return seed
    return tf.constant([check_seed("seed", seed), 0])


def derived_seed(seed: tf.Tensor, index: int | tf.Tensor) -> tf.Tensor:
    """A seed of its own for the draw `index` that follows from `seed`."""
    return tf.random.fold_in(seed, index)


def normal_like(value: Nest, seed: tf.Tensor) -> Nest:
    """Draws a nest of standard normal tensors like `value`."""
    leaves = [
        tf.random.stateless_normal(
            tf.shape(leaf), derived_seed(seed, i), dtype=leaf.dtype
        )
        for i, leaf in enumerate(tree.flatten(value))
    ]
    return tree.pack_sequence_as(value, leaves)
