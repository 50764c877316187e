"""Gradients are summed over the replicas before they are clipped and looked at."""

import tensorflow as tf


def sum_before_use(optimizer):
    """Makes a Keras optimizer sum the gradients of all replicas first.

    Keras' own do it last. Each replica then clips its part of the gradient by itself,
    which is not the clipped gradient; and with loss scaling, one whose gradient is not
    finite does not keep the others from using theirs.

    Args:
        optimizer: a `keras.Optimizer`, also one that scales the loss of another. The
            methods are replaced in the instance: files name Keras' own class.
    """
    apply = optimizer.apply
    applied = getattr(optimizer, "inner_optimizer", optimizer)

    def apply_sums(gradients, trainable_variables=None):
        return apply(_summed(gradients), trainable_variables)

    optimizer.apply = apply_sums
    applied._all_reduce_sum_gradients = lambda gradients_and_variables: list(
        gradients_and_variables
    )


def _summed(gradients):
    known = [gradient for gradient in gradients if gradient is not None]
    summed = iter(tf.distribute.get_replica_context().all_reduce("SUM", known))
    return [gradient if gradient is None else next(summed) for gradient in gradients]
