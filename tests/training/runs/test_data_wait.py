"""The share of training that waits for data."""

import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.runs.callbacks import DataWait, Stopwatch

ROW = np.ones((4, 3), "float32")


@pytest.fixture
def clock(monkeypatch):
    """A clock whose seconds pass only where the test says so."""
    clock = types.SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.seconds)

    def timestamp():
        return tf.numpy_function(lambda: np.float64(clock.seconds), [], tf.float64)

    monkeypatch.setattr(tf, "timestamp", timestamp)
    return clock


def slow_data(clock, seconds):
    """Three batches that each take so long."""

    def make(number):
        clock.seconds += seconds
        return ROW

    def batch(number):
        batch = tf.numpy_function(make, [number], tf.float32)
        batch = tf.ensure_shape(batch, ROW.shape)
        return batch, batch

    return tf.data.Dataset.range(3).map(batch)


def test_stopwatch_counts_only_waiting(clock):
    stopwatch = Stopwatch()
    assert not stopwatch.is_used
    for number, _ in enumerate(stopwatch.over(slow_data(clock, 2.0)), 1):
        assert stopwatch.seconds == 2.0 * number
        clock.seconds += 50.0  # The reader works.
    assert stopwatch.is_used


@pytest.mark.parametrize(("seconds", "share"), [(0.0, 0.0), (9.0, 0.75)])
def test_share_of_an_epoch(clock, seconds, share):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    stopwatch = Stopwatch()

    def step(batch, logs):
        clock.seconds += 3.0

    history = model.fit(
        stopwatch.over(slow_data(clock, seconds)),
        # Slow, and no part of training.
        validation_data=stopwatch.over(slow_data(clock, 20.0)),
        epochs=2,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=step),
            DataWait(stopwatch),
        ],
        shuffle=False,
        verbose=0,
    ).history
    np.testing.assert_allclose(history["data_wait"], [share, share])
