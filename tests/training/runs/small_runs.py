"""A job of seconds, and what its runs leave."""

import contextlib
import json

import keras
import numpy as np
import pytest

import deq_keras
from tests.harness import ALWAYS_EAGER
from training.config import reading as configs
from training.data.pipeline import array_batches
from training.files import records
from training.runs import variants
from training.runs.feed import Feed
from training.runs.job import Job
from training.runs.work_directory import WorkDirectory

QUICK_SOLVER = {"class_name": "fixed_point_iteration", "max_iter": 2}
INPUTS = np.random.RandomState(0).normal(size=(16, 3)).astype("float32")


class Killed(BaseException):
    pass


def die_in(epoch):
    """Returns a callback that ends a run at the start of an epoch; `None` for none."""

    def begin(current, logs):
        if current == epoch:
            raise Killed

    return keras.callbacks.LambdaCallback(on_epoch_begin=begin)


@contextlib.contextmanager
def eagerly():
    """Runs train eagerly in this context, and without the check that traces a step:
    graphs take most of the time of a run of seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "check", lambda *_: None)
        patch.setattr(keras.Model, "run_eagerly", ALWAYS_EAGER)
        yield


def finish(directory):
    """Trains and measures all variants of a `WorkDirectory`, and returns it."""
    variants.run(variants.make_jobs(directory), directory)
    return directory


def finished(path, config):
    """Returns the `WorkDirectory` of a new run of a resolved config."""
    return finish(WorkDirectory.start(path, config))


def history(folder):
    """Returns the rows of the history of a run, dicts of strings."""
    return records.read_history(folder / records.HISTORY, "")


def evaluation(folder):
    """Returns the contents of the evaluation of a run."""
    return json.loads((folder / records.EVALUATION).read_text())


class RegressionFeed(Feed):
    """The data of a regression, in four steps an epoch."""

    steps_per_epoch = 4

    def fit_arguments(self, steps):
        arrays, size = (INPUTS, INPUTS[:, :1]), len(INPUTS) // self.steps_per_epoch
        batches = array_batches(arrays, size, 0, steps)
        return {"x": batches, "steps_per_epoch": self.steps_per_epoch}


class RegressionJob(Job):
    """A regression in the place of a classifier.

    Args:
        config: Resolved config of a classifier, for all that is not its model.
        dies_in: Epoch at whose start the run dies.
    """

    feed_class = RegressionFeed
    monitor = "loss"
    mode = "min"

    def __init__(self, config, load=None, folder=None, dies_in=None):
        super().__init__(config, load, folder)
        self.dies_in = dies_in

    @classmethod
    def of(cls, small, phases, dies_in=None):
        """Returns the job of other phases of a plain config."""
        return cls(configs.resolve({**small, "phases": phases}), dies_in=dies_in)

    def make_callbacks(self, model):
        return [die_in(self.dies_in)]

    def build_model(self):
        cell = deq_keras.layers.DenseCell(4)
        solver = deq_keras.solvers.FixedPointIteration(max_iter=4)
        layer = deq_keras.layers.DEQ(cell, solver, name="deq")
        return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])

    def objective(self):
        return {"loss": "mse"}


def take_step(model, *batch):
    """Takes a training step, which changes every weight; returns its logs."""
    before = [variable.numpy() for variable in model.trainable_variables]
    logs = model.train_on_batch(*batch, return_dict=True)
    assert np.isfinite(logs["loss"])
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert np.all(np.isfinite(variable)), variable.path
        assert np.any(variable.numpy() != old), variable.path
    return logs


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
