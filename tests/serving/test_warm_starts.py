"""Solves that start from the equilibria of calls before."""

import keras
import numpy as np
import pytest

from deq_keras import layers, serving
from tests.layers.cells import TanhCell, TwoScaleCell

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")


@pytest.fixture(scope="module")
def warm():
    keras.utils.set_random_seed(1)
    deq = layers.DEQ(TanhCell(5, 0.6), "fixed_point_iteration", name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    warm = serving.WarmStartModel(model)
    warm.run_eagerly = True
    return warm


def test_predict_in_batches(warm):
    cold = warm.predict({"inputs": INPUTS}, batch_size=3, verbose=0)
    np.testing.assert_allclose(cold["outputs"], warm.model(INPUTS), atol=1e-5)
    request = {"inputs": INPUTS, "initial_state": cold["equilibrium"]}
    again = warm.predict(request, batch_size=3, verbose=0)
    assert (cold["evaluations"] > 3).all() and (again["evaluations"] == 1).all()
    np.testing.assert_allclose(again["outputs"], cold["outputs"], atol=1e-2)


@pytest.mark.slow
def test_nests_are_saved_and_exported(tmp_path):
    inputs = {name: keras.Input((3,), name=name) for name in ("x", "y")}
    warm = serving.WarmStartModel(
        keras.Model(inputs, layers.DEQ(TwoScaleCell(3))(inputs))
    )
    batch = {"x": INPUTS, "y": INPUTS}
    cold = warm.predict(batch, verbose=0)
    states = {f"initial_state_{i}": cold[f"equilibrium_{i}"] for i in range(2)}
    assert (warm.predict({**batch, **states}, verbose=0)["evaluations"] == 1).all()
    warm.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        restored.predict(batch, verbose=0)["map"], cold["map"], atol=1e-5
    )


def test_other_models_and_inputs_raise(warm):
    with pytest.raises(ValueError, match="Received"):
        warm({"images": INPUTS})
    with pytest.raises(ValueError, match="equilibrium"):
        inputs = keras.Input((3,))
        serving.WarmStartModel(keras.Model(inputs, inputs))
