"""Checkpoints, also corrupt ones."""

import json
import shutil

import keras
import numpy as np
import pytest

from deq_keras.layers import DEQ, SpectrallyNormalizedDense, cell_from
from training.errors import InputError
from training.runs import checkpoint

HISTORY = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]


def _model(seed=0):
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)]
    model = keras.Sequential(layers, name="model")
    model.compile(keras.optimizers.Adam(0.1), loss="mse")
    return model


def _values(model):
    return [variable.numpy() for variable in [*model.variables, *_moments(model)]]


def _moments(model):
    model.optimizer.build(model.trainable_variables)
    return model.optimizer.variables


def _restore(folder, model):
    return checkpoint.restore(folder, model, model.optimizer)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the checkpoints of two epochs; the values of the variables then."""
    folder = tmp_path_factory.mktemp("trained")
    model = _model()
    values = []
    for epoch in (1, 2):
        model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
        checkpoint.save(folder, model, HISTORY[:epoch])
        values.append(_values(model))
    return folder, *values


@pytest.fixture
def saved(trained, tmp_path):
    """A copy of it, to change as a test likes."""
    folder, *values = trained
    return shutil.copytree(folder, tmp_path / "saved"), *values


def _changed(**changes):
    """Returns a function that writes a checkpoint with other arrays."""

    def change(file):
        with np.load(file) as content:
            arrays = dict(content)
        for name, function in changes.items():
            value = function(arrays.pop(name.lstrip("_")))
            if value is not None:
                arrays[name.lstrip("_")] = value
        np.savez(file, **arrays)

    return change


def _flipped(file):
    content = bytearray(file.read_bytes())
    with np.load(file) as arrays:
        kernel = arrays["0"].tobytes()
    content[bytes(content).index(kernel)] ^= 1
    file.write_bytes(content)


def _folder(file):
    file.unlink()
    file.mkdir()


DAMAGE = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "empty": lambda file: file.write_bytes(b""),
    "flipped bit": _flipped,
    "folder": _folder,
    "missing variable": _changed(_2=lambda array: None),
    "missing history": _changed(history=lambda history: None),
    "missing epoch": _changed(history=lambda _: np.array(json.dumps(HISTORY[1:]))),
    "other shape": _changed(_0=lambda array: array.T),
    "other dtype": _changed(_0=lambda array: array.astype("float64")),
    "pickled objects": _changed(_0=lambda array: array.astype(object)),
    "not finite": _changed(_0=lambda array: array * np.nan),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_corrupt_checkpoint_falls_back_to_the_previous(saved, damage, capsys):
    folder, first, _ = saved
    damage(folder / "checkpoint.npz")
    model = _model(1)
    assert _restore(folder, model) == HISTORY[:1]
    np.testing.assert_equal(_values(model), first)
    assert str(folder / "checkpoint.npz") in capsys.readouterr().err
    # The previous checkpoint is now the newest. Without it, nothing is restored.
    assert (folder / "checkpoint.damaged.npz").exists()
    damage(folder / "checkpoint.npz")
    model = _model(2)
    before = _values(model)
    with pytest.raises(InputError, match=str(folder / "checkpoint.npz")):
        _restore(folder, model)
    np.testing.assert_equal(_values(model), before)


def test_failed_write_keeps_an_intact_checkpoint(saved, tmp_path, monkeypatch):
    """Every operation on files fails once; each time the newest one can be read."""
    folder, _, _ = saved
    model = _model(1)
    failures = 0

    def fail(number, operation):
        def function(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            return operation(*arguments, **options)

        return function

    for number in range(1, 10):
        copy = shutil.copytree(folder, tmp_path / f"copy{number}")
        calls = 0
        with monkeypatch.context() as patch:
            for name in ("replace", "fsync"):
                operation = getattr(checkpoint.os, name)
                patch.setattr(checkpoint.os, name, fail(number, operation))
            try:
                checkpoint.save(copy, model, HISTORY)
            except KeyboardInterrupt:
                failures += 1
        assert _restore(copy, _model(2)) in (HISTORY, HISTORY[:1])
    assert failures == 4


def test_other_model_raises(saved):
    folder, _, _ = saved
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="other")])
    model.compile(keras.optimizers.Adam(0.1))
    with pytest.raises(InputError, match="checkpoint of another model"):
        _restore(folder, model)


def test_history_of_the_newest_intact_checkpoint(saved):
    folder, _, _ = saved
    assert checkpoint.read_history(folder) == HISTORY
    (folder / "checkpoint.npz").write_bytes(b"")
    assert checkpoint.read_history(folder) == HISTORY[:1]
    (folder / "checkpoint.previous.npz").unlink()
    assert checkpoint.read_history(folder) == []


def test_no_checkpoint_restores_nothing(tmp_path):
    assert _restore(tmp_path, _model()) == []


def test_a_spectral_norm_is_estimated_as_without_an_interruption(tmp_path):
    """Its estimate continues from the last step's."""

    def build():
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        recurrent = SpectrallyNormalizedDense(4, max_norm=0.5, activation="tanh")
        deq = DEQ(cell_from(recurrent), "anderson", "implicit", regularizer=None)
        model = keras.Sequential([keras.Input((3,)), deq])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model

    data = np.ones((4, 3), "float32"), np.ones((4, 4), "float32")
    whole, resumed = build(), build()
    whole.fit(*data, verbose=0)
    checkpoint.save(tmp_path, whole, HISTORY[:1])
    whole.fit(*data, verbose=0)
    _restore(tmp_path, resumed)
    resumed.fit(*data, verbose=0)
    for one, other in zip(_values(whole), _values(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    paths = [one.path for one in checkpoint.state_variables(whole, whole.optimizer)]
    assert "previous_kernel" in "".join(paths)
