"""The share of training that waits for data."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.runs.callbacks import DataWait, Stopwatch

ROW = np.ones((4, 3), "float32")


def slow_data(seconds):
    """Batches that each take so long."""

    def make(number):
        del number

        def wait():
            time.sleep(seconds)
            return ROW

        batch = tf.ensure_shape(tf.numpy_function(wait, [], tf.float32), ROW.shape)
        return batch, batch

    return tf.data.Dataset.counter().map(make).prefetch(2)


@keras.saving.register_keras_serializable(package="tests")
class SlowLayer(keras.layers.Layer):
    """Takes 50 ms."""

    def call(self, inputs):
        def wait(values):
            time.sleep(0.05)
            return values

        return tf.ensure_shape(tf.numpy_function(wait, [inputs], tf.float32), (4, 3))


@pytest.mark.parametrize(("seconds", "low", "high"), [(0.0, 0, 0.2), (0.15, 0.4, 0.9)])
def test_share_of_an_epoch(seconds, low, high):
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(3)(SlowLayer()(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    stopwatch = Stopwatch()
    assert not stopwatch.is_used
    history = model.fit(
        stopwatch.over(slow_data(seconds)),
        # Slow, and no part of training.
        validation_data=stopwatch.over(slow_data(0.2).take(1)),
        epochs=2,
        steps_per_epoch=8,
        callbacks=[DataWait(stopwatch)],
        shuffle=False,
        verbose=0,
    ).history
    assert stopwatch.is_used
    assert low <= history["data_wait"][1] <= high


def test_batches_do_not_change():
    dataset = tf.data.Dataset.range(5).map(lambda i: {"a": i, "b": (i,)}).batch(2)
    timed = Stopwatch().over(dataset)
    assert timed.element_spec == dataset.element_spec
    assert timed.cardinality() == dataset.cardinality()
    for one, two in zip(timed, dataset, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, two)
