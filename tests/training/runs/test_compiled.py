"""Compiled models that runs with different seeds share."""

import keras
import numpy as np
import pytest

from training.errors import InputError
from training.files import saved_model
from training.runs.checkpoint import CompiledVariant


def new_run(seed):
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer, model


def values(model, optimizer):
    return [v.numpy() for v in [*model.variables, *optimizer.variables]]


def test_next_run_assigns_its_state_to_the_model():
    compiled, first = CompiledVariant(), new_run(0)
    assert compiled.share(*first) is not None
    model, optimizer, _ = first
    model.compile(optimizer, "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    second = new_run(1)
    kept = compiled.share(*second)
    assert kept[0] is model and kept[1] is optimizer
    np.testing.assert_equal(values(*kept[:2]), values(*second[:2]))
    assert int(optimizer.iterations) == 0


def test_next_file_assigns_its_weights_to_the_model(tmp_path):
    compiled, loaded = CompiledVariant(), []
    for seed in range(2):
        model, path = new_run(seed)[0], tmp_path / f"{seed}.keras"
        saved_model.save(model, path)
        loaded.append(compiled.load(path, "Remove it."))
        np.testing.assert_equal(loaded[-1].get_weights(), model.get_weights())
    assert loaded[0] is loaded[1]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="Remove it"):
        compiled.load(path, "Remove it.")
