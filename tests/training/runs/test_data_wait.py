"""The share of training that waits for data."""

import threading
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


def slow_data(clock, seconds, made=None):
    """Batches that each take so long; sets the event `made` after three of them."""

    def make(number):
        clock.seconds += seconds
        if made is not None and number == 2:
            made.set()
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


def test_buffered_batches_cost_no_waiting(clock):
    stopwatch, made = Stopwatch(), threading.Event()
    batches = iter(stopwatch.over(slow_data(clock, 2.0, made).prefetch(3)))
    next(batches)
    assert made.wait(60)
    waited = stopwatch.seconds
    assert 2.0 <= waited <= 6.0
    next(batches)
    next(batches)
    assert stopwatch.seconds == waited


class Clocked(keras.callbacks.Callback):
    """Adds three seconds to the clock in each training step."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def on_train_batch_end(self, batch, logs=None):
        self.clock.seconds += 3.0


@pytest.mark.parametrize(("seconds", "share"), [(0.0, 0.0), (9.0, 0.75)])
def test_share_of_an_epoch(clock, seconds, share):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    stopwatch = Stopwatch()
    history = model.fit(
        stopwatch.over(slow_data(clock, seconds)),
        # Slow, and no part of training.
        validation_data=stopwatch.over(slow_data(clock, 20.0)),
        epochs=2,
        callbacks=[Clocked(clock), DataWait(stopwatch)],
        shuffle=False,
        verbose=0,
    ).history
    np.testing.assert_allclose(history["data_wait"], [share, share])


def test_batches_do_not_change():
    dataset = tf.data.Dataset.range(5).map(lambda i: {"a": i, "b": (i,)}).batch(2)
    timed = Stopwatch().over(dataset)
    assert timed.element_spec == dataset.element_spec
    assert timed.cardinality() == dataset.cardinality()
    for one, two in zip(timed, dataset, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, two)
