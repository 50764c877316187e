"""What a loss must know of the other replicas, where several devices train at once."""

import tensorflow as tf


def summed(value):
    """Returns the sum of a tensor over all replicas; the tensor itself of one."""
    replica = _replica()
    return value if replica is None else replica.all_reduce("SUM", value)


def gathered(values):
    """Returns the vectors of all replicas, one after the other."""
    replica = _replica()
    return values if replica is None else replica.all_gather(values, axis=0)


def part_of_loss(loss, batch_size):
    """Returns a replica's summand of a loss as Keras adds them up.

    Keras sums the gradients of all replicas, and averages their losses weighted by
    their samples. Where replicas have as many, which training has, the summand is as it
    is.

    Args:
        loss: scalar. The loss of the whole batch is its sum over the replicas.
        batch_size: int32 scalar. Samples of this replica.
    """
    replica = _replica()
    if replica is None:
        return loss
    own = tf.cast(batch_size, loss.dtype)
    return tf.math.divide_no_nan(loss * summed(own), own * replica.num_replicas_in_sync)


def _replica():
    """Returns the context of this replica, `None` where it is the only one, or where
    Keras builds a model for all of them."""
    replica = tf.distribute.get_replica_context()
    return replica if replica and replica.num_replicas_in_sync > 1 else None
