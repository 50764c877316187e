"""Patches for training on several devices, one function per defect of the platform.

Each replaces methods of an instance, so that saved files name Keras' own class. Keras
releases up to 3.15.1 require all of the first four. Remove a patch when the oldest
supported Keras no longer needs it.

* `build_from_local_batch`: the shares of a first batch must be equal.
* `isolate_replica_losses`: all replicas share one list of added losses.
* `sum_gradients_first`: each replica clips its own gradient.
* `seed_replicas`: all replicas draw the same random numbers.
* `synchronize_normalization`: a per-layer option of Keras.
"""

import keras
import tensorflow as tf
from keras import tree


def build_from_local_batch(model):
    """Patches Keras to build a model from the first batch of one replica.

    Keras builds it from the mean over the replicas' first batches, which requires equal
    shapes.
    """
    build = model._maybe_symbolic_build
    strategy = tf.distribute.get_strategy()

    def build_from_first(iterator=None, data_batch=None):
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                next(batches),
            )
        return build(data_batch=data_batch)

    model._maybe_symbolic_build = build_from_first


def synchronize_normalization(model):
    """Computes batch normalization statistics over all replicas.

    Without it, each replica uses the statistics of its own shard of the batch.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


def isolate_replica_losses(model):
    """Excludes losses that layers added in other replicas.

    Replicas take turns where they wait for each other within the forward pass, as in
    synchronized normalization. Keras keeps a single list of added losses for all
    replicas, so later ones would log the losses of earlier ones. Gradients are correct.

    Args:
        model: A new `keras.Model`.
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
        layer.add_loss = _with_owner(layer.add_loss, added)


def _with_owner(add_loss, added):
    def add(loss):
        owner = tf.distribute.get_replica_context()
        added.extend((leaf, owner) for leaf in tf.nest.flatten(loss))
        add_loss(loss)

    return add


def sum_gradients_first(optimizer):
    """Sums the gradients of all replicas before the optimizer uses them.

    Keras sums them last. Each replica would clip its own gradient, which differs from
    clipping the sum. With loss scaling, a non-finite gradient in one replica would not
    stop the others from applying their gradients.

    Args:
        optimizer: A `keras.Optimizer`, possibly a `LossScaleOptimizer`.
    """
    apply = optimizer.apply
    applied = getattr(optimizer, "inner_optimizer", optimizer)

    def apply_sums(gradients, trainable_variables=None):
        known = [gradient for gradient in gradients if gradient is not None]
        context = tf.distribute.get_replica_context()
        sums = iter(context.all_reduce("SUM", known))
        gradients = [None if one is None else next(sums) for one in gradients]
        return apply(gradients, trainable_variables)

    optimizer.apply = apply_sums
    applied._all_reduce_sum_gradients = lambda gradients_and_variables: list(
        gradients_and_variables
    )


def seed_replicas(strategy, model):
    """Sets the seeds of the replicas beside the first.

    Replica r uses the seeds of replica 0 plus r. A strategy starts all replicas with
    equal seeds, so that all would draw the same noise for their samples.

    Args:
        strategy: A `tf.distribute.Strategy`.
        model: A `keras.Model`, new or restored, whose first replica has its seeds.
    """
    states = [s for s in model.variables if s.path.endswith("seed_generator_state")]
    for state in states:
        copies = strategy.experimental_local_results(state.value)
        first = tf.identity(copies[0])
        for replica, copy in enumerate(copies):
            copy.assign(first + [replica, 0])
