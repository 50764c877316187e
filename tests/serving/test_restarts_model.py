"""Models that solve every sample from several states."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, multistart, serving, solvers
from tests.layers.cells import TanhCell, TwoScaleCell

INPUTS = np.random.RandomState(0).normal(size=(5, 3)).astype("float32")


@keras.saving.register_keras_serializable("deq_keras_tests")
def most_likely(logits):
    return keras.ops.argmax(logits, axis=-1)


def _model(scale=3.0):
    solver = solvers.FixedPointIteration(tol=None, max_iter=3)
    deq = layers.DEQ(TanhCell(5, scale), solver, name="deq")
    outputs = keras.layers.Dense(3, kernel_initializer="random_normal", name="head")
    return keras.Sequential([keras.Input((3,)), deq, outputs])


@pytest.mark.slow
def test_xla_draws_otherwise_and_always_the_same():
    searching = serving.RestartsModel(_model(), 6, "vote", most_likely)
    searching.compile(jit_compile=True)
    found, again = (searching.predict(INPUTS, 2, verbose=0) for _ in range(2))
    np.testing.assert_array_equal(found["restart"], again["restart"])
    np.testing.assert_array_equal(found["outputs"], again["outputs"])
    np.testing.assert_array_equal(found["total_evaluations"], 6 * 3)
    assert (found["spread"] > 0.1).all() and len(np.unique(found["restart"])) > 1
    one = searching.predict(INPUTS[2:3], verbose=0)
    np.testing.assert_array_equal(found["restart"][2:3], one["restart"])


def test_predict_is_the_solve_of_the_layer():
    model = _model()
    deq, head = model.layers
    searching = serving.RestartsModel(model, 6, "vote", most_likely)
    found = searching.predict(INPUTS, batch_size=2, verbose=0)
    expected = multistart.solve(
        deq, INPUTS, 6, "vote", answer=lambda z: most_likely(head(z))
    )
    np.testing.assert_array_equal(found["restart"], expected.restart)
    np.testing.assert_array_equal(found["agreement"], expected.agreement)
    np.testing.assert_array_equal(found["total_evaluations"], 6 * 3)
    np.testing.assert_allclose(found["outputs"], head(expected.value), atol=1e-4)
    assert (found["agreement"] < 1.0).any() and (found["spread"] > 0.1).all()


@pytest.mark.slow
def test_one_restart_is_the_model_and_others_follow_from_a_seed():
    model = _model()
    found = [serving.RestartsModel(model, 2, seed=seed)(INPUTS) for seed in (0, 1)]
    assert np.all(found[0]["spread"] != found[1]["spread"])
    one = serving.RestartsModel(model, 1)(INPUTS)
    np.testing.assert_allclose(one["outputs"], model(INPUTS), atol=1e-6)


@pytest.mark.slow
def test_nests_are_saved(tmp_path):
    inputs = {name: keras.Input((3,), name=name) for name in ("x", "y")}
    model = keras.Model(inputs, layers.DEQ(TwoScaleCell(3))(inputs))
    searching = serving.RestartsModel(model, 3, name="searching")
    batch = {"x": INPUTS, "y": INPUTS}
    found = searching(batch)
    assert set(found["outputs"]) == {"vector", "map"}
    searching.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")(batch)
    tf.nest.map_structure(np.testing.assert_array_equal, found, restored)


@pytest.mark.slow
def test_functions_survive_a_config():
    config = serving.RestartsModel(_model(), 3, "vote", most_likely).get_config()
    copy = serving.RestartsModel.from_config(config)
    assert copy.selection.answer is most_likely and copy.selection.select == "vote"


def test_what_is_refused():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, inputs)
    with pytest.raises(ValueError, match="calls one equilibrium layer, once"):
        serving.RestartsModel(model)
    deq = layers.DEQ(TanhCell(3))
    twice = keras.Model(inputs, deq(deq(inputs)))
    with pytest.raises(ValueError, match=r"which solves \['deq', 'deq_2'\]"):
        serving.RestartsModel(twice)
    with pytest.raises(ValueError, match="`restarts` must be a positive integer"):
        serving.RestartsModel(model, 0)
    with pytest.raises(ValueError, match="`seed` must be an integer"):
        serving.RestartsModel(model, seed=None)
