"""Files: exports stop as early as the layer, and random draws continue."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests import harness
from tests.layers.cells import TanhCell
from tests.regimes import slow

INPUTS = np.random.RandomState(0).normal(size=(5, 4)).astype("float32")


class LoggingCell(TanhCell):
    """Writes a line to a file at every evaluation, and contracts as the input says."""

    def __init__(self, log, **kwargs):
        super().__init__(5, scale=1.0, **kwargs)
        self.log = log

    def inject(self, inputs, training=False):
        return {"rate": inputs[:, :1], "inputs": self.projection(inputs)}

    def initial_state(self, injection):
        return tf.zeros_like(injection["inputs"])

    def call(self, state, injection):
        tf.print("evaluated", output_stream=f"file://{self.log}")
        return super().call(state * injection["rate"], injection["inputs"])


@pytest.mark.parametrize("solver", ["anderson", slow("broyden")])
def test_exported_loop_stops_early(solver, tmp_path):
    """The file evaluates f as often as its input needs."""
    easy, hard = np.random.RandomState(1).normal(size=(2, 2, 4)).astype("float32")
    easy[:, 0], hard[:, 0] = 0.05, 0.8
    log = tmp_path / "log"
    solver = {"class_name": solver, "max_iter": 30, "tol": 1e-4}
    deq = layers.DEQ(LoggingCell(log), solver)
    harness.functional_model(deq, easy).export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    needed, counted = [], []
    for inputs in (easy, hard, np.concatenate([easy, hard])):
        needed.append(int(deq.solve(inputs).batch_evaluations))
        log.unlink()
        loaded.serve(inputs)
        # One carries the gradient; it goes with a graph unless it has side effects.
        counted.append(len(log.read_text().splitlines()) - 1)
    assert counted == needed
    assert needed[0] < needed[1] == needed[2] < 30


DATA = np.random.RandomState(0).normal(size=(8, 3)).astype("float32")


@keras.saving.register_keras_serializable("deq_keras_tests")
class DropoutCell(TanhCell):
    """Drops units of its injection."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.dropout = layers.VariationalDropout(0.5, dtype=self.dtype_policy)

    def inject(self, inputs, training=False):
        return self.dropout(super().inject(inputs), training=training)


def _random_model(cell=TanhCell, seed=None):
    # A few steps, of which samples that are drawn take free ones.
    gradient = gradients.TruncatedGradient(2, 2, free_fraction=0.5)
    deq = layers.DEQ(cell(4), gradient=gradient, seed=seed, name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def _states(model):
    deq = model.get_layer("deq")
    found = [deq.seed_generator]
    if hasattr(deq.cell, "dropout"):
        found.append(deq.cell.dropout.seed_generator)
    return [generator.state.numpy().tolist() for generator in found]


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_file_continues_the_draws(name, tmp_path):
    model = _random_model(DropoutCell)
    model.train_on_batch(DATA, DATA[:, :1])
    if name.endswith(".keras"):
        model.save(tmp_path / name)
        other = keras.saving.load_model(tmp_path / name)
        other.run_eagerly = True
    else:
        model.save_weights(tmp_path / name)
        other = _random_model(DropoutCell)
        other.optimizer.build(other.trainable_variables)
        assert _states(other) != _states(model)
        other.load_weights(tmp_path / name)
    assert _states(other) == _states(model)
    for one in (model, other):
        one.train_on_batch(DATA, DATA[:, :1])
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(one, two, err_msg=one.path)


@pytest.mark.parametrize(("seed", "is_loaded"), [(1, True), (2, False), (None, True)])
def test_layer_with_another_seed_keeps_its_own(seed, is_loaded, tmp_path):
    path = tmp_path / "model.weights.h5"
    model, other = _random_model(seed=1), _random_model(seed=seed)
    model(DATA, training=True)
    model.save_weights(path)
    before = _states(other)
    assert before != _states(model)
    other.load_weights(path)
    assert _states(other) == (_states(model) if is_loaded else before)


def test_paths_of_variables_are_unique_and_stable():
    def build():
        keras.utils.clear_session(free_memory=False)
        inputs = keras.Input((4,))
        dropped = layers.VariationalDropout(0.2)(inputs)
        solver = solvers.FixedPointIteration(3)
        first = layers.DEQ(TanhCell(4), solver, "implicit", seed=1)(dropped)
        second = layers.DEQ(TanhCell(4), solver, "neumann", initial_state="normal")
        model = keras.Model(inputs, second(layers.VariationalDropout(0.1)(first)))
        model.compile("adam", "mse", run_eagerly=True)
        model.fit(INPUTS, np.zeros((5, 4)), verbose=0)
        return model

    model = build()
    tree = model.get_state_tree()  # Raises if two variables have one path.
    metrics = tree["metrics_variables"]
    # Total and count of each metric; the first one counts evaluations.
    assert metrics["deq"]["sums"][0, 1] == 5.0
    assert metrics["deq_1"]["sums"][0, 0] > 5.0
    paths = [variable.path for variable in model.variables + model.metrics_variables]
    assert len(set(paths)) == len(paths)
    for layer in model.layers[1:]:
        for variable in layer.variables:
            assert variable.path.startswith(f"{layer.name}/"), variable.path
    again = build()
    assert paths == [one.path for one in again.variables + again.metrics_variables]
    again.set_state_tree(tree)
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))
