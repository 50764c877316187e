"""The rows of a batch that holds all samples once for every restart."""

import tensorflow as tf
from keras import tree

from deq_keras.structure import Nest


def repeat_rows(samples: Nest, num_restarts: int) -> Nest:
    """Returns a nest of `(num_restarts * batch, ...)` tensors: all samples, then all
    again, and so on.

    Args:
        samples: Nest of `(batch, ...)` tensors, and of `None`, which stays.
        num_restarts: Positive integer.
    """

    def repeat(leaf: tf.Tensor | None) -> tf.Tensor | None:
        if leaf is None:
            return None
        return tf.tile(leaf, [num_restarts] + [1] * (leaf.shape.rank - 1))

    return tree.map_structure(repeat, samples)


def split_rows(rows: Nest, num_restarts: int) -> Nest:
    """Returns a nest of `(num_restarts, batch, ...)` tensors.

    Args:
        rows: Nest of `(num_restarts * batch, ...)` tensors.
        num_restarts: Positive integer.
    """

    def split(leaf: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(leaf)
        batch_size = shape[0] // num_restarts
        return tf.reshape(
            leaf, tf.concat([[num_restarts, batch_size], shape[1:]], axis=0)
        )

    return tree.map_structure(split, rows)


def chosen_rows(rows: Nest, restart: tf.Tensor) -> Nest:
    """Returns a nest of `(batch, ...)` tensors: the restart of each sample.

    Args:
        rows: Nest of `(num_restarts * batch, ...)` tensors.
        restart: Int32 tensor `(batch,)`. Which is chosen.
    """
    batch_size = tf.size(restart)
    indices = restart * batch_size + tf.range(batch_size)
    return tree.map_structure(lambda leaf: tf.gather(leaf, indices), rows)
