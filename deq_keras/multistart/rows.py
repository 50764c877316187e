"""Batches that contain all samples once per restart, and comparisons of restarts."""

import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest, StateStructure


def repeat_rows(samples: Nest, num_restarts: int) -> Nest:
    """Returns all samples, repeated once per restart.

    Args:
        samples: Nest of `(batch, ...)` tensors and `None`, which does not change.
        num_restarts: Positive integer.

    Returns:
        A nest of `(num_restarts * batch, ...)` tensors: the whole batch, repeated.
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
        restart: Int32 tensor `(batch,)`. Index of the chosen restart.
    """
    batch_size = tf.size(restart)
    indices = restart * batch_size + tf.range(batch_size)
    return tree.map_structure(lambda leaf: tf.gather(leaf, indices), rows)


def stacked_answers(answers: Nest, num_restarts: int) -> tf.Tensor:
    """Returns an int64 tensor `(num_restarts, batch, positions)`.

    Args:
        answers: Nest of integer or Boolean tensors `(num_restarts * batch, ...)`.
        num_restarts: Positive integer.
    """
    columns = []
    for leaf in tree.flatten(answers):
        shape = tf.shape(leaf)
        columns.append(
            tf.reshape(tf.cast(leaf, tf.int64), [shape[0], tf.reduce_prod(shape[1:])])
        )
    return split_rows(tf.concat(columns, axis=1), num_restarts)


def votes_for_majority(answers: tf.Tensor, votes: tf.Tensor) -> tf.Tensor:
    """Returns the number of positions at which each restart agrees with the majority.

    Ties go to the answer of the restart with the smallest index.

    Args:
        answers: Integer tensor `(restarts, batch, positions)`.
        votes: Boolean tensor `(restarts, batch)`. Restarts that vote.

    Returns:
        Int32 tensor `(restarts, batch)`.
    """

    def winner(
        best: tuple[tf.Tensor, tf.Tensor], one: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        count, majority = best
        answer, has_vote = one
        for_it = votes[:, :, None] & tf.equal(answers, answer)
        new = tf.reduce_sum(tf.cast(for_it, tf.int32), axis=0)  # (batch, positions)
        wins = has_vote[:, None] & (new > count)
        return tf.where(wins, new, count), tf.where(wins, answer, majority)

    # Loops, because one vectorized comparison needs memory for all pairs of restarts.
    first = (tf.zeros_like(answers[0], tf.int32), answers[0])
    _, majority = tf.foldl(winner, (answers, votes), first, parallel_iterations=1)
    return tf.reduce_sum(tf.cast(tf.equal(answers, majority), tf.int32), axis=2)


def same_answers(answers: tf.Tensor, restart: tf.Tensor) -> tf.Tensor:
    """Returns a mask `(restarts, batch)` of restarts that agree with the chosen one.

    Args:
        answers: Integer tensor `(restarts, batch, positions)`.
        restart: Int32 tensor `(batch,)`. Index of the chosen restart.
    """
    chosen = tf.gather(tf.transpose(answers, [1, 0, 2]), restart, batch_dims=1)
    return tf.reduce_all(tf.equal(answers, chosen), axis=2)


def relative_distances(
    states: Nest, restart: tf.Tensor, num_restarts: int
) -> tf.Tensor:
    """Returns |z - z'| / max(|z|, |z'|), a float tensor `(restarts, batch)`.

    Args:
        states: Nest of floating-point tensors `(num_restarts * batch, ...)`, z'.
        restart: Int32 tensor `(batch,)`. Index of the chosen restart, z.
        num_restarts: Positive integer.
    """
    others = StateStructure(states).to_matrix(states)
    chosen = repeat_rows(chosen_rows(others, restart), num_restarts)
    largest = tf.maximum(tf.norm(chosen, axis=1), tf.norm(others, axis=1))
    distances = tf.norm(chosen - others, axis=1)
    # If the larger norm is zero, the distance is zero.
    return split_rows(tf.math.divide_no_nan(distances, largest), num_restarts)
