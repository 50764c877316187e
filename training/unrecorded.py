"""Leaves out of the logs what was never recorded."""

import math

import keras


class DropUnrecorded(keras.callbacks.Callback):
    """Removes the statistics of layers in which nothing was recorded from the logs.

    They are NaN, as are those of the backward pass in validation. The NaN of a loss or
    of a score is a result and stays. Comes before the callbacks that keep logs.

    Args:
        names: the names of the statistics.
    """

    def __init__(self, names):
        super().__init__()
        self.names = {*names, *(f"val_{name}" for name in names)}

    def on_epoch_end(self, epoch, logs=None):
        self._drop(logs)

    def on_test_end(self, logs=None):
        self._drop(logs)

    def _drop(self, logs):
        for name in self.names & logs.keys():
            if math.isnan(logs[name]):
                del logs[name]
