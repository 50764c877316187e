"""`EquilibriumSummaries` writes summaries of finite samples for TensorBoard."""

import collections
import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.callbacks import EquilibriumSummaries
from tests.layers.cells import FunctionCell, LinearCell


def plain_layer(**arguments):
    solver = {"class_name": "fixed_point_iteration", "max_iter": 20, "tol": 1e-2}
    arguments = {"solver": solver, "regularizer": None, **arguments}
    return deq_keras.layers.DEQ(LinearCell(), name="deq", seed=1, **arguments)


def fitted(layer, folder, epochs=3, inputs=None, is_watched=True, **arguments):
    """Returns the history of a training, and the seed at its end."""
    x = np.random.default_rng(0).normal(size=(9, 3)).astype("float32")
    inputs = x[:4] if inputs is None else inputs
    watching = EquilibriumSummaries(layer, lambda: inputs, folder, **arguments)
    fit = {"batch_size": 4, "epochs": epochs, "verbose": 0, "validation_split": 0.1}
    keras.utils.set_random_seed(0)
    symbolic = keras.Input((3,))
    model = keras.Model(symbolic, layer(symbolic))
    model.compile(keras.optimizers.SGD(1e-6), "mse", run_eagerly=True)
    history = model.fit(x, 3 * x, callbacks=[watching] if is_watched else [], **fit)
    return history.history, layer.seed_generator.state.numpy().tolist()


def events(folder):
    """Returns the values of each tag, by step."""
    values = collections.defaultdict(dict)
    for file in sorted(folder.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                assert event.step not in values[value.tag]
                values[value.tag][event.step] = tf.make_ndarray(value.tensor)
    return values


def test_run_writes_its_summaries(tmp_path):
    parts = {"gradient": "neumann", "regularizer": "residual"}
    arguments = {"max_iter": 10, "phase": "first"}
    watched = fitted(plain_layer(**parts), tmp_path, **arguments)
    assert fitted(plain_layer(**parts), tmp_path, is_watched=False) == watched
    written = events(tmp_path / "equilibrium")
    assert set(written) == {
        "deq/phase",
        "deq/evaluations",
        "deq/log10_residual",
        # The callback writes curves of epochs 1, 2, 4, 8, ... and of the last.
        *(f"deq/residual_over_evaluations/epoch_{epoch:04d}" for epoch in range(3)),
        *(f"deq/residual_at/{k:03d}" for k in (1, 2, 4, 8, 10)),
        *(f"deq/time_share/{part}" for part in ("f", "solver", "gradient")),
    }
    ((step, text),) = written.pop("deq/phase").items()
    assert step == 0 and text.item().startswith(b"first\n")
    assert b"gradient: NeumannGradient(num_terms=12)" in text.item()
    prefix = "deq/residual_over_evaluations/"
    curves = {name: written.pop(name) for name in [*written] if name.startswith(prefix)}
    assert len(curves) == 3
    for steps in curves.values():
        assert list(steps) == list(range(1, 11))
        assert steps[10] < steps[5] < steps[1]
    for name, values in written.items():
        assert list(values) == [0, 1, 2], name
    # Half a residual an evaluation, and 1 of the first, which starts at 0.
    assert written["deq/residual_at/001"][0] == pytest.approx(1.0)
    assert written["deq/residual_at/008"][0] == pytest.approx(0.5**8, rel=0.1)
    histogram = written["deq/evaluations"][0]  # (buckets, (left, right, count))
    assert histogram[:, 2].sum() == 4
    assert set(np.round(histogram[histogram[:, 2] > 0][:, :2].mean(axis=1))) == {7.0}
    shares = [written[f"deq/time_share/{part}"][2] for part in ("f", "solver")]
    shares.append(written["deq/time_share/gradient"][2])
    assert all(0 <= share <= 1 for share in shares) and sum(shares) == pytest.approx(1)


@pytest.mark.slow
def test_failed_samples_do_not_count(tmp_path):
    inputs = np.ones((3, 3), "float32")
    inputs[1] = np.nan
    fitted(plain_layer(gradient="neumann"), tmp_path, 1, inputs, max_iter=4)
    written = events(tmp_path / "equilibrium")
    assert written["deq/log10_residual"][0][:, 2].sum() == 2
    assert np.isfinite(written["deq/residual_at/004"][0])
    fitted(plain_layer(), tmp_path / "none", 1, np.nan * inputs, max_iter=4)
    assert "deq/residual_at/004" not in events(tmp_path / "none" / "equilibrium")


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="tensorboard"):
        EquilibriumSummaries(plain_layer(), lambda: None, "logs")


def test_masks_of_inputs_are_kept(tmp_path, monkeypatch):
    cell = FunctionCell(lambda z, u: 0.5 * tf.roll(z, 1, 1) + u)
    layer = deq_keras.layers.DEQ(cell, regularizer=None)
    inputs = keras.layers.Embedding(6, 3, mask_zero=True)(np.array([[1, 0, 0, 0]]))
    layer(inputs)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    written = {}
    monkeypatch.setattr(tf.summary, "histogram", written.__setitem__)
    callback = EquilibriumSummaries(layer, lambda: inputs, tmp_path)
    callback.set_model(model)
    callback.set_params({"epochs": 1})
    callback.on_train_begin()
    callback.on_epoch_end(0)
    (found,) = (v for k, v in written.items() if k.endswith("evaluations"))
    assert found == layer.solve(inputs).num_evaluations
    assert found != layer.solve(tf.identity(inputs)).num_evaluations
