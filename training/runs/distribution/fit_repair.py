"""What `fit` of Keras 3 lacks where several devices or workers train.

Keras issue 20585: `fit` and `evaluate` raise under `MultiWorkerMirroredStrategy`. The
methods below take the place of Keras' in the instance of a model, so that its files
name its own class. Each is left out where Keras' has changed.
"""

import inspect

import keras
import tensorflow as tf
from keras import tree


def repair(model):
    """Makes `fit` and `evaluate` of a model work under the strategy of its scope."""
    strategy = tf.distribute.get_strategy()
    if _says(keras.Model._maybe_symbolic_build, "distribute_strategy.reduce("):
        model._maybe_symbolic_build = _build_from_local_batch(model, strategy)
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if is_multi_worker and _says(_reduce_per_replica(), 'reduce("MEAN", v, axis=0)'):
        model.train_step = _with_vectors_of_logs(model.train_step)
        model.test_step = _with_vectors_of_logs(model.test_step)


def _reduce_per_replica():
    """Keras' function that reduces what a step returns."""
    return inspect.getmodule(keras.Model.make_train_function).reduce_per_replica


def _says(function, text):
    return text in inspect.getsource(function)


def _build_from_local_batch(model, strategy):
    """Keras builds a model from the mean of the replicas' first batches, which must be
    of one shape then, and cannot be on several workers. One of them will do."""
    build = model._maybe_symbolic_build

    def build_from_local_batch(iterator=None, data_batch=None):
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                next(batches),
            )
        return build(data_batch=data_batch)

    return build_from_local_batch


def _with_vectors_of_logs(step):
    """Keras reduces what a step returns along a first axis, which scalars lack."""

    def step_with_vectors(data):
        return tree.map_structure(lambda value: tf.reshape(value, [1]), step(data))

    return step_with_vectors
