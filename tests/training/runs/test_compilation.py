"""XLA compiles long phases without convolutions on a CPU, and changes only rounding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.runs.small_runs import RegressionJob
from training.runs import compilation
from training.runs.train import build, train

pytestmark = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="Keras decides on a GPU."
)


class Convolutional(RegressionJob):
    def build_model(self):
        inputs = keras.Input((3,))
        images = keras.layers.Reshape((3, 1, 1))(inputs)
        vectors = keras.layers.Flatten()(keras.layers.Conv2D(1, 1)(images))
        return keras.Model(inputs, super().build_model()(vectors))


class ConvolutionalInTime(RegressionJob):
    def build_model(self):
        inputs = keras.Input((3,))
        steps = keras.layers.Reshape((3, 1))(inputs)
        vectors = keras.layers.Flatten()(keras.layers.Conv1D(1, 1)(steps))
        return keras.Model(inputs, super().build_model()(vectors))


def _job(small, cls=RegressionJob, **changes):
    """Returns a job of phases of 4 and 8 steps."""
    return cls.of({**small, **changes}, [{"epochs": 1}, {"epochs": 2}])


@pytest.mark.parametrize(
    "cls, changes, expected",
    [
        (RegressionJob, {}, ["auto", True]),
        (RegressionJob, {"jit_compile": False}, [False, False]),
        (Convolutional, {}, ["auto", "auto"]),
        (ConvolutionalInTime, {}, ["auto", "auto"]),
    ],
)
def test_long_phases_are_compiled(small, monkeypatch, cls, changes, expected):
    monkeypatch.setattr(compilation, "_FEWEST_STEPS", 8)
    job = _job(small, cls, **changes)
    model, _, spans = build(job)
    assert [compilation.choose(job, model, span) for span in spans] == expected


@pytest.mark.slow
def test_losses_differ_by_rounding(tmp_path, small, monkeypatch):
    losses = []
    for fewest in (4, 9):
        monkeypatch.setattr(compilation, "_FEWEST_STEPS", fewest)
        folder = tmp_path / str(fewest)
        folder.mkdir()
        _, history = train(_job(small), folder)
        losses.append([row["loss"] for row in history])
    np.testing.assert_allclose(*losses, rtol=1e-4)
