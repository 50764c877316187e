"""A job of seconds, and what its runs leave."""

import operator

import keras
import numpy as np

import deq_keras
from training.runs.job import Job
from training.runs.phases import phase_spans

INPUTS = np.random.RandomState(0).normal(size=(16, 3)).astype("float32")


class Killed(BaseException):
    pass


class RegressionJob(Job):
    """A regression in the place of a classifier."""

    monitor = "loss"
    is_better = staticmethod(operator.lt)

    def build(self):
        cell = deq_keras.layers.DenseCell(4)
        layers = [keras.Input((3,)), deq_keras.layers.DEQ(cell, name="deq")]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        return model, keras.optimizers.Adam(0.01), phase_spans(self.config)

    def equilibrium(self, model):
        return model.get_layer("deq")

    def compile(self, model, optimizer):
        model.compile(optimizer, loss="mse")

    def fit_arguments(self, epochs):
        return {"x": INPUTS, "y": INPUTS[:, :1], "batch_size": 4}


def checkpoint(folder):
    """Returns the variables in the checkpoint of a run, by name."""
    with np.load(folder / "checkpoint.npz") as file:
        names = file["names"].tolist()
        return {name: file[f"{i}"] for i, name in enumerate(names)}


def assert_same_checkpoints(received, expected):
    received, expected = checkpoint(received), checkpoint(expected)
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(received[name], values, err_msg=name)


def assert_same_histories(received, expected):
    """Compares the rows of two runs, but for the time that they took."""
    for row, other in zip(received, expected, strict=True):
        times = {"seconds": 0, "data_wait": 0}
        assert {**row, **times} == {**other, **times}
