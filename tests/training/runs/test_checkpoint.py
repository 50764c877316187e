"""Checkpoints: what is restored, what is refused, and what takes the place of it."""

import json
import shutil

import keras
import numpy as np
import pytest

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


def _assert_equal(received, expected):
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_array_equal(one, other)


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


def _replaced(content):
    return lambda file: file.write_bytes(content)


def _folder(file):
    file.unlink()
    file.mkdir()


def _array(file):
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))


DAMAGE = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "half": lambda file: file.write_bytes(file.read_bytes()[:1000]),
    "empty": _replaced(b""),
    "garbage": _replaced(b"\x80\x04garbage" * 100),
    "a bit": _flipped,
    "a folder": _folder,
    "another kind of file": _array,
    "no names": _changed(names=lambda names: None),
    "a variable less": _changed(_2=lambda array: None),
    "no history": _changed(history=lambda history: None),
    "a broken history": _changed(history=lambda history: np.array("[{")),
    "a history that is none": _changed(history=lambda history: np.array("3")),
    "an epoch less": _changed(history=lambda _: np.array(json.dumps(HISTORY[1:]))),
    "another shape": _changed(_0=lambda array: array.T),
    "another dtype": _changed(_0=lambda array: array.astype("float64")),
    "objects": _changed(_0=lambda array: array.astype(object)),
    "not finite": _changed(_0=lambda array: array * np.nan),
}


each_damage = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)


@each_damage
def test_damage_falls_back_to_the_checkpoint_before(saved, damage, capsys):
    folder, first, _ = saved
    damage(folder / "checkpoint.npz")
    model = _model(1)
    assert _restore(folder, model) == HISTORY[:1]
    _assert_equal(_values(model), first)
    error = capsys.readouterr().err
    assert str(folder / "checkpoint.npz") in error and "after epoch 1" in error
    # The earlier checkpoint is now the newest.
    assert (folder / "checkpoint.damaged.npz").exists()
    assert _restore(folder, _model(2)) == HISTORY[:1]


@each_damage
def test_damage_of_all_checkpoints_is_refused_and_changes_nothing(saved, damage):
    folder, _, _ = saved
    previous = folder / "checkpoint.previous.npz"
    damage(folder / "checkpoint.npz")
    damage(previous)
    model = _model(1)
    before = _values(model)
    for _ in range(2):
        with pytest.raises(InputError, match=str(folder / "checkpoint.npz")):
            _restore(folder, model)
        shutil.rmtree(previous) if previous.is_dir() else previous.unlink(True)
    _assert_equal(_values(model), before)


def test_restores_the_newest(saved):
    folder, _, second = saved
    model = _model(1)
    assert _restore(folder, model) == HISTORY
    _assert_equal(_values(model), second)


def test_without_a_checkpoint_nothing_is_restored(tmp_path):
    assert _restore(tmp_path, _model()) == []


def test_a_process_killed_between_the_two_files_loses_one_epoch(saved):
    folder, first, _ = saved
    (folder / "checkpoint.npz").unlink()
    model = _model(1)
    assert _restore(folder, model) == HISTORY[:1]
    _assert_equal(_values(model), first)


def test_at_every_moment_there_is_a_whole_one(saved, tmp_path, monkeypatch):
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


def test_another_model_is_refused(saved):
    folder, _, _ = saved
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="other")])
    model.compile(keras.optimizers.Adam(0.1))
    with pytest.raises(InputError, match="checkpoint of another model"):
        _restore(folder, model)


def test_history_of_the_newest_that_is_whole(saved):
    folder, _, _ = saved
    assert checkpoint.read_history(folder) == HISTORY
    (folder / "checkpoint.npz").write_bytes(b"")
    assert checkpoint.read_history(folder) == HISTORY[:1]
    (folder / "checkpoint.previous.npz").unlink()
    assert checkpoint.read_history(folder) == []


@pytest.mark.parametrize("num_epochs", [0, 1, 2])
def test_an_epoch_that_other_workers_have_too(saved, num_epochs):
    folder, *after = saved
    model = _model(2)
    expected = [_values(model), *after][num_epochs]
    history = checkpoint.restore_epoch(folder, model, model.optimizer, num_epochs)
    assert history == HISTORY[:num_epochs]
    _assert_equal(_values(model), expected)


def test_an_epoch_of_which_there_is_no_checkpoint(saved):
    folder, _, _ = saved
    model = _model(2)
    (folder / "checkpoint.previous.npz").write_bytes(b"")
    with pytest.raises(InputError, match="no checkpoint after epoch 1, the newest"):
        checkpoint.restore_epoch(folder, model, model.optimizer, 1)
