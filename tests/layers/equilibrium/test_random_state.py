"""Draws that continue after a model was saved or a training was interrupted."""

import h5py
import keras
import numpy as np
import pytest

from deq_keras import gradients, layers
from tests.layers.cells import TanhCell

INPUTS = np.random.RandomState(0).normal(size=(8, 3)).astype("float32")
STATE = "seed_generator_state"


@keras.saving.register_keras_serializable("deq_keras_tests")
class DropoutCell(TanhCell):
    """Drops units of its injection."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.dropout = layers.VariationalDropout(0.5, dtype=self.dtype_policy)

    def inject(self, inputs, training=False):
        return self.dropout(super().inject(inputs), training=training)


def _model(cell=TanhCell, seed=None):
    # A few steps, of which samples that are drawn take free ones.
    gradient = gradients.TruncatedGradient(2, 2, free_fraction=0.5)
    deq = layers.DEQ(cell(4), gradient=gradient, seed=seed, name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def _fit(model, epochs, callbacks=()):
    return model.fit(
        INPUTS,
        INPUTS[:, :1],
        batch_size=4,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def _assert_equal_weights(one, two):
    for a, b in zip(one.weights, two.weights, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=a.path)


def _generators(model):
    cell = model.get_layer("deq").cell
    found = [model.get_layer("deq").seed_generator]
    if hasattr(cell, "dropout"):
        found.append(cell.dropout.seed_generator)
    return found


def _states(model):
    return [generator.state.numpy().tolist() for generator in _generators(model)]


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_file_continues_the_draws(name, tmp_path):
    model = _model(DropoutCell)
    _fit(model, 1)
    if name.endswith(".keras"):
        model.save(tmp_path / name)
        other = keras.saving.load_model(tmp_path / name)
        other.run_eagerly = True
    else:
        model.save_weights(tmp_path / name)
        other = _model(DropoutCell)
        other.optimizer.build(other.trainable_variables)
        assert _states(other) != _states(model)
        other.load_weights(tmp_path / name)
    assert _states(other) == _states(model)
    for one in (model, other):
        _fit(one, 1)
    _assert_equal_weights(model, other)


def test_a_training_that_is_interrupted_ends_with_the_same_weights(tmp_path):
    whole = _model(DropoutCell)
    weights, states = whole.get_weights(), _states(whole)
    _fit(whole, 3)

    def interrupt(epoch, logs):
        if epoch == 1:
            raise KeyboardInterrupt

    first = _model(DropoutCell)
    first.set_weights(weights)
    for generator, state in zip(_generators(first), states, strict=True):
        generator.state.assign(state)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    with pytest.raises(KeyboardInterrupt):
        _fit(first, 3, [backup, stop])
    resumed = _model(DropoutCell)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    _fit(resumed, 3, [backup])
    _assert_equal_weights(resumed, whole)
    assert _states(resumed) == _states(whole)


def test_a_file_without_the_state_loads(tmp_path):
    """As versions before wrote it."""
    path = tmp_path / "model.weights.h5"
    model, other = _model(), _model()
    _fit(model, 1)
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        names = []
        file.visit(lambda name: names.append(name))
        states = [name for name in names if name.endswith(STATE)]
        for name in states:
            del file[name]
    assert len(states) == 1
    before = _states(other)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    assert _states(other) == before
    np.testing.assert_array_equal(
        other.layers[1].kernel.numpy(), model.layers[1].kernel.numpy()
    )


@pytest.mark.parametrize(("seed", "is_loaded"), [(1, True), (2, False), (None, True)])
def test_a_layer_with_another_seed_keeps_its_own(seed, is_loaded, tmp_path):
    path = tmp_path / "model.weights.h5"
    model, other = _model(seed=1), _model(seed=seed)
    model(INPUTS, training=True)
    model.save_weights(path)
    before = _states(other)
    assert before != _states(model)
    other.load_weights(path)
    assert _states(other) == (_states(model) if is_loaded else before)
