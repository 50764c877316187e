"""How long training waits for data."""

import time

import keras
import tensorflow as tf


class Stopwatch:
    """Adds up the seconds for which readers of datasets wait for their batches."""

    def __init__(self):
        self._waited = None

    @property
    def is_used(self):
        """Whether there are such datasets."""
        return self._waited is not None

    @property
    def seconds(self):
        """So far."""
        return float(self._waited.numpy())

    def over(self, dataset):
        """Returns the same dataset, whose readers' waiting is counted.

        Its buffers come before: what is ready there is not waited for.
        """
        if not self.is_used:
            with tf.device("CPU:0"):
                self._waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)

        def come(asked, batch):
            with tf.control_dependencies(tf.nest.flatten(batch)):
                waited = self._waited.assign_add(tf.timestamp() - asked)
            with tf.control_dependencies([waited]):
                return tf.nest.map_structure(tf.identity, batch)

        # Of a pair, the first is made first: the time at which a batch was asked for.
        asked = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
        options = tf.data.Options()
        # A buffer after the clock would be what is timed.
        options.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.zip(asked, dataset).map(come).with_options(options)


class DataWait(keras.callbacks.Callback):
    """Adds to the logs of an epoch the share of its training that waited for data.

    `data_wait` is between 0 and 1, from the beginning of the epoch to the end of its
    last training step. On a device that computes while the host goes on it is the share
    in which the host waits, and thus the most that better input would save.

    Args:
        stopwatch: the `Stopwatch` of the data.
    """

    def __init__(self, stopwatch):
        super().__init__()
        self._stopwatch = stopwatch
        self._start = self._waited = self._share = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start, self._waited = time.perf_counter(), self._stopwatch.seconds

    def on_train_batch_end(self, batch, logs=None):
        # After the last batch comes validation, which reads data too.
        waited = self._stopwatch.seconds - self._waited
        self._share = waited / (time.perf_counter() - self._start)

    def on_epoch_end(self, epoch, logs=None):
        logs["data_wait"] = self._share
