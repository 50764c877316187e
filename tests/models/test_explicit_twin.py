"""Explicit networks in place of an equilibrium."""

import keras
import numpy as np
import pytest

from deq_keras import layers, models
from deq_keras.solvers import FixedPointIteration
from tests.layers.cells import SubclassedModel
from tests.regimes import slow

X = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")


def equilibrium_model(nested=False):
    deq = layers.DEQ(layers.DenseCell(4), FixedPointIteration(8), name="deq")
    inner = keras.Sequential([keras.Input((3,)), deq]) if nested else deq
    return keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1)])


def deqs(model):
    return [one for one in model._flatten_layers() if isinstance(one, layers.DEQ)]


@pytest.mark.parametrize("nested", [False, True])
def test_tied_twin_takes_a_fixed_number_of_steps(nested):
    model = equilibrium_model(nested)
    twin = models.explicit_twin(model, depth=12)
    twin.set_weights(model.get_weights())
    (deq,) = deqs(model)
    problem, state = deq.problem(X), np.zeros((5, 4), "float32")
    for _ in range(12):
        state = problem(state)
    np.testing.assert_allclose(twin(X), model.layers[-1](state), rtol=1e-5)
    assert deq.solver.max_iter == 8


def test_untied_twin_has_cells_of_its_own(tmp_path):
    model = equilibrium_model()
    twin = models.explicit_twin(model, depth=2, tied=False, name="twin")
    cells = [deq.cell for deq in twin.layers[0].layers]
    assert len(cells) == 2 and twin.name == "twin"
    head = model.layers[-1].count_params()
    assert twin.count_params() - head == 2 * (model.count_params() - head)
    state = np.zeros((5, 4), "float32")
    for cell in cells:
        state = cell(state, cell.inject(X))
    np.testing.assert_allclose(twin(X), twin.layers[-1](state), rtol=1e-5)

    twin.compile("sgd", "mse", run_eagerly=True)
    before = cells[1].get_weights()
    twin.fit(X, X[:, :1], verbose=0)
    for old, new in zip(before, cells[1].get_weights(), strict=True):
        assert np.any(old != new)
    twin.save(tmp_path / "twin.keras")
    loaded = keras.saving.load_model(tmp_path / "twin.keras")
    np.testing.assert_allclose(loaded(X), twin(X), rtol=1e-6)


def test_padding_does_not_matter_to_a_twin():
    inputs = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(5, 4, mask_zero=True)(inputs)
    cell = layers.AttentionCell(4, num_heads=2)
    states = layers.DEQ(cell, FixedPointIteration(2))(embedded)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(states))
    for tied in (True, False):
        twin = models.explicit_twin(model, depth=2, tied=tied)
        short = np.array([[1, 2, 3]], "int32")
        padded = np.pad(short, ((0, 0), (0, 2)))
        np.testing.assert_allclose(twin(padded), twin(short), atol=1e-5)


@keras.saving.register_keras_serializable("tests")
class Decaying(layers.EquilibriumCell):
    """After n steps from zero the state is (1 - 0.9^n) / 0.1 times the input."""

    def call(self, state, injection):
        return 0.9 * state + injection


def decaying_model(max_iter, wrapped=False):
    deq = layers.DEQ(Decaying(), FixedPointIteration(30, tol=None), "unrolled", None)
    inputs = keras.Input((3,))
    outputs = deq(inputs, max_iter=max_iter, tol=0.1)
    if not wrapped:
        return keras.Model(inputs, outputs)
    sequences = keras.Input((2, 3))
    inner = keras.layers.TimeDistributed(keras.Model(inputs, outputs))
    return keras.Sequential([sequences, inner])


@pytest.mark.parametrize("tied", [True, slow(False)])
def test_depth_replaces_the_budget_of_a_call(tied, tmp_path):
    for max_iter in (3, 50):
        twin = models.explicit_twin(decaying_model(max_iter), 6, tied=tied)
        np.testing.assert_allclose(twin(X), X * (1 - 0.9**6) / 0.1, rtol=1e-5)
    twin.save(tmp_path / "twin.keras")
    loaded = keras.saving.load_model(tmp_path / "twin.keras")
    np.testing.assert_array_equal(loaded(X), twin(X))


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_layers_in_wrappers_become_explicit(tied):
    deq = layers.DEQ(Decaying(), FixedPointIteration(30, tol=None))
    wrapper = keras.layers.TimeDistributed(deq)
    sequences = np.stack([X, -X], axis=1)
    expected = sequences * (1 - 0.9**6) / 0.1
    for model in (
        keras.Sequential([keras.Input((2, 3)), wrapper]),
        decaying_model(3, wrapped=True),
    ):
        twin = models.explicit_twin(model, 6, tied=tied)
        np.testing.assert_allclose(twin(sequences), expected, rtol=1e-5)
        assert not any(one.regularizer for one in deqs(twin))


class Unregistered(Decaying):
    pass


class Owner(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.deq = layers.DEQ(Decaying())

    def call(self, inputs):
        return self.deq(inputs)


def test_layers_that_cannot_be_copied_raise():
    unregistered = layers.DEQ(Unregistered())
    for layer, remedy in ((unregistered, "Register.*Unregistered"), (Owner(), "deq")):
        model = keras.Sequential([keras.Input((3,)), layer])
        with pytest.raises(ValueError, match=f"{remedy}"):
            models.explicit_twin(model, 2)


def test_other_models_raise():
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    for model in (plain, layers.DEQ(layers.DenseCell(2)), SubclassedModel()):
        with pytest.raises(ValueError, match="model.*Received"):
            models.explicit_twin(model, 2)
    with pytest.raises(ValueError, match="depth"):
        models.explicit_twin(equilibrium_model(), 0)


def test_untied_layers_have_the_precision_and_the_state_of_training():
    inputs = keras.Input((1,), dtype="float64")
    deq = layers.DEQ(layers.DenseCell(2, dtype="float64"), dtype="float64")
    model = keras.Model(inputs, deq(inputs))
    deq.trainable = False
    twin = models.explicit_twin(model, 2, tied=False)
    assert not twin.trainable_variables
    value = 2.0**24 + 1  # Float32 has no such number.
    state = np.zeros((1, 2))
    for layer in twin.layers[-1].layers:
        state = np.asarray(layer(np.array([[value]]), initial_state=state))
    np.testing.assert_allclose(twin(np.array([[value]])), state, rtol=1e-14)


def test_untied_twin_of_a_wrapper_in_a_functional_model():
    inputs = keras.Input((5, 3))
    wrapped = keras.layers.TimeDistributed(layers.DEQ(layers.DenseCell(4)))
    twin = models.explicit_twin(keras.Model(inputs, wrapped(inputs)), 2, tied=False)
    assert twin(np.ones((2, 5, 3), "float32")).shape == (2, 5, 4)
