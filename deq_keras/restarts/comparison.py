"""How the answers and the equilibria of several restarts compare."""

import tensorflow as tf
from keras import tree

from deq_keras.restarts.rows import chosen_rows, repeat_rows, split_rows
from deq_keras.structure import Nest, StateStructure


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
    """Returns at how many positions each restart has the answer of most.

    Of several answers that as many have, that of the first of these restarts counts.

    Args:
        answers: Integer tensor `(restarts, batch, positions)`.
        votes: Boolean tensor `(restarts, batch)`. Which restarts have a vote.

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

    # One after another: all at once would compare every pair of restarts.
    first = (tf.zeros_like(answers[0], tf.int32), answers[0])
    _, majority = tf.foldl(winner, (answers, votes), first, parallel_iterations=1)
    return tf.reduce_sum(tf.cast(tf.equal(answers, majority), tf.int32), axis=2)


def same_answers(answers: tf.Tensor, restart: tf.Tensor) -> tf.Tensor:
    """Tells which restarts have the answer of the chosen one, `(restarts, batch)`.

    Args:
        answers: Integer tensor `(restarts, batch, positions)`.
        restart: Int32 tensor `(batch,)`. Which is chosen.
    """
    chosen = tf.gather(tf.transpose(answers, [1, 0, 2]), restart, batch_dims=1)
    return tf.reduce_all(tf.equal(answers, chosen), axis=2)


def relative_distances(
    states: Nest, restart: tf.Tensor, num_restarts: int
) -> tf.Tensor:
    """Returns |z - z'| / max(|z|, |z'|), a float tensor `(restarts, batch)`.

    Args:
        states: Nest of floating-point tensors `(num_restarts * batch, ...)`, z'.
        restart: Int32 tensor `(batch,)`. Which is chosen, z.
        num_restarts: Positive integer.
    """
    others = StateStructure(states).to_matrix(states)
    chosen = repeat_rows(chosen_rows(others, restart), num_restarts)
    largest = tf.maximum(tf.norm(chosen, axis=1), tf.norm(others, axis=1))
    distances = tf.norm(chosen - others, axis=1)
    # Both are zero where the larger is.
    return split_rows(tf.math.divide_no_nan(distances, largest), num_restarts)
