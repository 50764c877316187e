"""Solves that start from the equilibria of calls before."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, serving, solvers
from tests.layers.cells import TanhCell, TwoScaleCell

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")


@pytest.fixture(scope="module")
def warm():
    keras.utils.set_random_seed(1)
    deq = layers.DEQ(TanhCell(5, 0.6), "fixed_point_iteration", name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    return serving.WarmStartModel(model)


def _ask(warm):
    """Without the seconds that `predict` takes to make itself."""
    answer = tf.function(warm)
    return lambda request: {k: np.asarray(v) for k, v in answer(request).items()}


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


def test_a_cache_of_streams(warm):
    cache = serving.EquilibriumCache(_ask(warm), {"initial_state": (5,)}, capacity=3)
    first = cache({"inputs": INPUTS[:3]}, keys=["a", "b", "c"])
    moved = INPUTS[:3] + 1e-3
    second = cache({"inputs": moved}, keys=["a", "b", "new"])
    assert (second["evaluations"][:2] < first["evaluations"][:2]).all()
    assert second["evaluations"][2] == _ask(warm)({"inputs": moved})["evaluations"][2]
    assert len(cache) == 3  # The stream "c" was asked longest ago.
    assert cache({"inputs": INPUTS[2:3]}, keys=["c"])["evaluations"] > 1


def test_a_cache_of_repeated_questions_forgets_failures(warm):
    cache = serving.EquilibriumCache(_ask(warm), {"initial_state": (5,)})
    inputs = INPUTS.copy()
    inputs[0, 0] = np.nan
    cache({"inputs": inputs})
    assert len(cache) == 3
    again = cache({"inputs": inputs[::-1]})["evaluations"]
    assert (again[:3] == 1).all()
    assert len(cache) == 3


@keras.saving.register_keras_serializable("deq_keras_tests")
class SlowCell(keras.layers.Layer):
    """f(z, u) = 0.8 z + u: from 1e6 it takes three times as long as from zero."""

    def initial_state(self, injection):
        return keras.ops.zeros_like(injection)

    def call(self, state, injection):
        return 0.8 * state + injection


@pytest.fixture(scope="module")
def slow():
    solver = solvers.FixedPointIteration(max_iter=40, tol=1e-3)
    deq = layers.DEQ(SlowCell(), solver, gradient="implicit", regularizer=None)
    return _ask(serving.WarmStartModel(keras.Sequential([keras.Input((3,)), deq])))


def test_a_stored_state_costs_no_convergence(slow):
    cache = serving.EquilibriumCache(slow, {"initial_state": (3,)})
    ones = np.ones((2, 3), "float32")
    cache({"inputs": ones * [[1.0], [1e6]]}, keys=["still", "flash"])
    state = np.array([[5.0] * 3, [5e6] * 3], "float32")
    lost = slow({"inputs": ones, "initial_state": state})
    assert lost["status"].tolist() == [solvers.CONVERGED, solvers.MAX_ITER]
    cold = slow({"inputs": ones})
    answer = cache({"inputs": ones}, keys=["still", "flash"])
    assert answer["status"].tolist() == [solvers.CONVERGED] * 2
    np.testing.assert_allclose(answer["outputs"], cold["outputs"], rtol=1e-2)
    # The neighbor is charged for its own solve alone.
    assert answer["evaluations"].tolist() == [1, 40 + cold["evaluations"][1]]
    assert cache({"inputs": ones}, keys=["still", "flash"])["evaluations"].max() == 1


def test_a_cache_stores_states_of_converged_samples_alone(slow):
    def spoilt(request):
        answer = slow(request)
        return {
            **answer,
            "equilibrium": np.full_like(answer["equilibrium"], 1e6),
            "status": np.full_like(answer["status"], solvers.MAX_ITER),
        }

    cache = serving.EquilibriumCache(spoilt, {"initial_state": (3,)})
    cache({"inputs": np.ones((2, 3), "float32")})
    assert len(cache) == 0


def test_a_cache_of_an_empty_request(slow):
    cache = serving.EquilibriumCache(slow, {"initial_state": (3,)})
    assert cache({"inputs": np.ones((0, 3), "float32")})["outputs"].shape == (0, 3)


def test_what_is_refused(warm):
    cache = serving.EquilibriumCache(warm, {"initial_state": (5,)})
    with pytest.raises(ValueError, match="one for each sample.*2 keys, 4 samples"):
        cache({"inputs": INPUTS}, keys=[1, 2])
    with pytest.raises(ValueError, match="same number of rows.*'y': 1"):
        cache({"inputs": INPUTS, "y": INPUTS[:1]})
    with pytest.raises(ValueError, match="`capacity` must be a positive integer"):
        serving.EquilibriumCache(warm, {}, capacity=0)
    with pytest.raises(ValueError, match="Expected a dict of"):
        warm({"images": INPUTS})
    with pytest.raises(ValueError, match="needs an equilibrium layer"):
        inputs = keras.Input((3,))
        serving.WarmStartModel(keras.Model(inputs, inputs))
