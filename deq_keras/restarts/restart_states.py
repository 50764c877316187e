"""Where several searches of the same samples begin."""

import tensorflow as tf
from keras import tree

from deq_keras.draws import derived_seed
from deq_keras.starts import NormalStart, Start
from deq_keras.structure import Nest


def starting_states(
    start: Start, state: Nest, num_restarts: int, seed: tf.Tensor
) -> Nest:
    """Returns `state`, in which all restarts but the first begin at drawn states.

    What is drawn is the `random_part` of `start`, or N(0, 1) where it has none. Every
    sample gets the same draws, so that an answer depends neither on the other samples
    of a batch nor on a sample's place in it.

    Args:
        start: A `deq_keras.starts.Start`.
        state: Nest of tensors `(num_restarts * batch, ...)`: all samples as the first
            restart has them, then all as the second, and so on.
        num_restarts: Positive integer.
        seed: Int32 tensor of shape `(2,)`: that of the solve.

    Returns:
        A nest like `state`.

    Example:

    >>> state = deq_keras.restarts.starting_states(
    ...     deq_keras.starts.CellStart(), tf.zeros((6, 4)), 3, tf.constant([0, 0])
    ... )
    >>> np.unique(state, axis=0).shape
    (3, 4)
    """
    if num_restarts == 1:
        return state
    # Of their shapes and dtypes alone; a batch may be empty.
    others = tree.map_structure(lambda leaf: tf.zeros_like(leaf[1:num_restarts]), state)
    # With 0 and 1 a solve draws its own start and its noise.
    drawn = (start.random_part or NormalStart())(others, derived_seed(seed, 2))

    def with_drawn(leaf: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        batch_size = tf.shape(leaf)[0] // num_restarts
        repeated = tf.repeat(drawn, batch_size, axis=0)  # (restarts - 1) * batch
        result = tf.concat([leaf[:batch_size], repeated], axis=0)
        return tf.ensure_shape(result, leaf.shape)

    return tree.map_structure(with_drawn, state, drawn)
