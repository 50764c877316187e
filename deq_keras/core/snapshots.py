"""Records the variables of a loop at evenly spaced counts."""

from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count
from deq_keras.core.structure import Nest


def check_num_states(num_states: Any, limit: int | tf.Tensor, source: str) -> int:
    """Returns a number of states that a loop can record.

    Args:
        num_states: The argument of the user.
        limit: Integer. The largest count of the loop. A tensor is not checked: states
            then repeat.
        source: String that names the limit.

    Raises:
        ValueError: If `num_states` is not a positive integer, at most `limit`.
    """
    num_states = check_count("num_states", num_states)
    if not tf.is_tensor(limit) and num_states > limit:
        raise ValueError(
            f"`num_states` must be at most {source}, because each state needs an "
            "evaluation of its own. Use fewer states or a larger limit. Expected: "
            f"num_states <= {limit}. Received: {num_states=}."
        )
    return num_states


def start(num_states: int | None, variables: Nest) -> tuple[Nest, ...]:
    """Returns the snapshots before the loop: one per state, except for the last.

    Args:
        num_states: Positive integer, or `None` to record nothing.
        variables: Nest of tensors before the first iteration.
    """
    return (variables,) * ((num_states or 1) - 1)


def updated(
    snapshots: tuple[Nest, ...],
    variables: Nest,
    count: tf.Tensor,
    limit: int | tf.Tensor,
    is_last: tf.Tensor,
) -> tuple[Nest, ...]:
    """Returns the snapshots after an iteration.

    Of n states, state i (from 0) belongs to the count `(i + 1) * limit / n`, rounded.
    If the loop ends earlier, its final variables fill the remaining snapshots.

    Args:
        snapshots: Tuple that `start` or `updated` returned.
        variables: Nest of tensors like a snapshot, after the iteration.
        count: Int32 scalar tensor. Number of iterations so far.
        limit: Integer, or integer scalar tensor. The largest number.
        is_last: Boolean scalar tensor. Whether no iteration follows.
    """
    if not snapshots:
        return snapshots
    count = tf.cast(count, tf.int64)
    counts = _counts(len(snapshots) + 1, limit)

    def written() -> tuple[Nest, ...]:
        # Snapshots of later counts also store the variables, in case the loop ends.
        return tuple(
            tree.map_structure(
                lambda new, old, i=i: tf.where(counts[i] >= count, new, old),
                variables,
                snapshot,
            )
            for i, snapshot in enumerate(snapshots)
        )

    is_due = is_last | tf.reduce_any(tf.equal(counts, count))
    return tf.cond(is_due, written, lambda: snapshots)


def _counts(num_states: int, limit: int | tf.Tensor) -> tf.Tensor:
    """Returns the counts of all states but the last, int64 `(num_states - 1,)`."""
    steps = tf.range(1, num_states, dtype=tf.int64)
    counts = (2 * steps * tf.cast(limit, tf.int64) + num_states) // (2 * num_states)
    return tf.maximum(counts, 1)
