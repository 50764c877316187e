"""The losses that layers add: each replica counts its own."""

import tensorflow as tf


def keep_apart(model):
    """Makes each replica leave out what layers have added in the others.

    Replicas take turns where they wait for one another within the forward pass, as
    synchronized normalization does, and Keras has one list of added losses for all of
    them: the later ones would log the earlier ones' too. Gradients need no mending.

    Args:
        model: a new model. The methods are replaced in the instances: files name
            Keras' own class.
    """
    added = []
    aggregate = model._aggregate_additional_loss

    def aggregate_own(loss):
        replica = tf.distribute.get_replica_context()
        is_of_another = any(
            loss is other and replica is not owner for other, owner in added
        )
        return tf.zeros_like(loss) if is_of_another else aggregate(loss)

    model._aggregate_additional_loss = aggregate_own
    for layer in model._flatten_layers():
        layer.add_loss = _noting(layer.add_loss, added)


def _noting(add_loss, added):
    def add(loss):
        owner = tf.distribute.get_replica_context()
        added.extend((leaf, owner) for leaf in tf.nest.flatten(loss))
        add_loss(loss)

    return add
