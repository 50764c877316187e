"""Exports of runs with a bound of the distance to the equilibrium."""

import keras
import numpy as np
import pytest

from deq_keras import layers, serving
from training.conversion.export import export
from training.errors import InputError


class _Job:
    """A job whose model is exported as it is."""

    def prepare_export(self, model):
        return model, np.ones((2, 4), "float32")

    def largest_budget(self, model):
        return 40


def test_a_certified_export(tmp_path):
    path = tmp_path / "model.tflite"
    deq = layers.DEQ(layers.DenseCell(3))
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(2)])
    export(_Job(), model, path, "litert", certify=True)
    loaded = serving.load(path)
    names = ["outputs", "evaluations", "residual", "status", "radius"]
    assert loaded.outputs == names
    assert np.all(loaded(np.ones((2, 4)))["radius"] < 0.1)


def test_a_model_without_a_bound(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(InputError, match="was not written. `certify=True` needs a"):
        export(_Job(), model, tmp_path / "model.tflite", "litert", certify=True)
    assert not list(tmp_path.iterdir())
