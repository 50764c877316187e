"""Operations across replicas, for losses in training on several devices."""

import tensorflow as tf


def summed(value):
    """Returns the sum of a tensor over all replicas."""
    replica = _replica()
    return value if replica is None else replica.all_reduce("SUM", value)


def gathered(values):
    """Returns the concatenated vectors of all replicas."""
    replica = _replica()
    return values if replica is None else replica.all_gather(values, axis=0)


def part_of_loss(loss, batch_size):
    """Scales a replica's summand of a loss for Keras' reduction.

    Keras sums the gradients of all replicas, and averages their losses weighted by
    their numbers of samples. In training, replicas have equal numbers, so the summand
    does not change.

    Args:
        loss: Scalar. The sum over all replicas is the loss of the whole batch.
        batch_size: Int32 scalar. Number of samples of this replica.
    """
    replica = _replica()
    if replica is None:
        return loss
    own = tf.cast(batch_size, loss.dtype)
    return tf.math.divide_no_nan(loss * summed(own), own * replica.num_replicas_in_sync)


def _replica():
    """Returns the context of this replica, or `None` if it is the only replica or Keras
    builds a model for all of them."""
    replica = tf.distribute.get_replica_context()
    return replica if replica and replica.num_replicas_in_sync > 1 else None
