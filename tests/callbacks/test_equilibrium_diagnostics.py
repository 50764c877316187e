"""`EquilibriumDiagnostics` logs radii and norms, and warns about bad states."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.callbacks import EquilibriumDiagnostics
from tests.layers.cells import FunctionCell, LinearCell


def _measured(layer, inputs, epochs, **arguments):
    """Returns the logs of each epoch. `inputs` is a function."""
    callback = EquilibriumDiagnostics(layer, inputs, **arguments)
    callback.on_train_begin()
    logs = [{} for _ in range(epochs)]
    for epoch in range(epochs):
        callback.on_epoch_end(epoch, logs[epoch])
    return logs


def test_logs_the_radius_and_the_norm_of_each_epoch():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    model = keras.Sequential([keras.layers.Rescaling(2.0), layer])
    model.compile(keras.optimizers.SGD(1e-3), "mse", run_eagerly=True)
    callback = EquilibriumDiagnostics(model, np.ones((2, 3), "float32"))
    x = np.ones((8, 3), "float32")
    fit = {"epochs": 2, "verbose": 0, "callbacks": [callback]}
    history = model.fit(x, 6 * x, **fit).history
    radii, rate = history["deq_spectral_radius"], float(layer.cell.rate)
    assert radii[-1] == pytest.approx(rate, rel=1e-3) and radii[0] != radii[1]
    # The norm of a multiple of the identity, over sqrt(dimensions), is its factor.
    np.testing.assert_allclose(history["deq_jacobian_norm"], radii, rtol=0.3)
    assert history["deq_spectral_radius_converged"] == [1.0, 1.0]


class WeakCell(deq_keras.layers.EquilibriumCell):
    """f(z, x) = z / 2 + (1 + strength x) / 2, so that z = 1 + strength x."""

    strength = 1.0

    def call(self, state, injection):
        return 0.5 * state + 0.5 + 0.5 * self.strength * injection


def test_states_that_do_not_depend_on_the_inputs_warn():
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 5, 3)).astype("float32")
    x[3] = np.nan
    is_kept = random.random((16, 5)) < 0.7
    x = tf.constant(x)
    x._keras_mask = tf.constant(is_kept)
    for strength, same in ((0.3, False), (1e-3, False), (1e-3, True)):
        solver = deq_keras.solvers.FixedPointIteration(30, tol=None)
        layer = deq_keras.layers.DEQ(WeakCell(), solver, regularizer=None, name="deq")
        layer.cell.strength = strength
        inputs = tf.ones_like(x) if same else x
        if not same:
            inputs._keras_mask = x._keras_mask
        warns = pytest.warns(UserWarning, match="hardly depend on the inputs")
        with warns if strength < 0.1 and not same else contextlib.nullcontext():
            spread = _measured(layer, lambda i=inputs: i, 1)[0]["deq_state_spread"]
        if same:
            assert spread < 1e-6
            continue
        states = np.where(is_kept[..., None], 1 + strength * x.numpy(), np.nan)
        distance = states - np.nanmean(states, axis=0)
        expected = np.sqrt(np.nansum(distance**2) / np.nansum(states**2))
        assert spread == pytest.approx(expected, rel=1e-3)


class CycleCell(deq_keras.layers.EquilibriumCell):
    """f(z, x) = z / 2 where x is positive, and z moved round a circle elsewhere."""

    def call(self, state, injection):
        cycled = keras.ops.roll(state, 1, 1)
        return keras.ops.where(injection > 0, 0.5 * state, cycled) + 0 * injection


def test_means_are_over_converged_radii_and_finite_norms():
    layer = deq_keras.layers.DEQ(CycleCell(), regularizer=None, name="deq")
    signs = {0: [1, -1, np.nan, -1], 2: [-1, -1, -1, -1]}
    x = {epoch: np.full((4, 40), np.c_[s], "float32") for epoch, s in signs.items()}
    layer(x[0])
    measurements = iter(x.values())
    found, skipped, none = _measured(
        layer, lambda: next(measurements), epochs=3, num_iterations=15, freq=2
    )
    assert not skipped
    assert found["deq_spectral_radius"] == pytest.approx(0.5)
    assert found["deq_spectral_radius_converged"] == 0.25
    assert np.isfinite(found["deq_jacobian_norm"])
    assert np.isnan(none["deq_spectral_radius"])
    assert none["deq_spectral_radius_converged"] == 0.0


def test_function_is_called_at_each_measurement():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    embedding = keras.layers.Embedding(4, 3, mask_zero=True)
    tokens = np.array([[1, 2, 3], [1, 0, 0]])
    layer(embedding(tokens))
    rows = iter([0, 1])

    def inputs():
        row = next(rows)
        return embedding(tf.constant(tokens[row : row + 1]))

    whole, padded = (
        logs["deq_jacobian_norm"] for logs in _measured(layer, inputs, epochs=2)
    )
    # With one state, |df/dz| is proportional to the root of the unmasked positions.
    assert whole == pytest.approx(0.5, rel=0.3)
    assert padded == pytest.approx(0.5 / np.sqrt(3), rel=0.3)


@pytest.mark.parametrize("rate, changes", [(0.9, True), (0.5, False)])
def test_state_that_moves_beyond_the_budget_warns(rate, changes):
    """f(z) = rate z + (1 - rate) x moves from 1 - rate^n to 1 - rate^2n times x."""
    cell = FunctionCell(lambda z, x: rate * z + (1 - rate) * x)
    solver = deq_keras.solvers.FixedPointIteration(8)
    layer = deq_keras.layers.DEQ(cell, solver, "truncated", None, name="deq")
    x = np.array([[1.0] * 3, [np.nan] * 3], "float32")
    layer(x)
    callback = EquilibriumDiagnostics(layer, lambda: x)
    if not changes:
        callback.on_train_end()
        return
    change = (rate**8 - rate**16) / (1 - rate**16)
    with pytest.warns(UserWarning, match=f"16 evaluations change it by {change:.0%}"):
        callback.on_train_end()
    layer.gradient = "implicit"
    callback.on_train_end()


@pytest.mark.parametrize("tol, warns", [(0.3, True), (1e-4, False)])
def test_tolerance_that_is_loose_for_the_loss_warns(tol, warns):
    """f(z) = 0.9 z + 0.1 x stops at 0.8 x, or at x."""
    cell = FunctionCell(lambda z, x: 0.9 * z + 0.1 * x)
    solver = deq_keras.solvers.FixedPointIteration(200, tol=tol)
    gradient = deq_keras.gradients.ImplicitGradient(deq_keras.solvers.GMRES())
    layer = deq_keras.layers.DEQ(cell, solver, gradient, None, name="deq")
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((3,)), dense, layer])
    model.compile("sgd", "mse", run_eagerly=True)
    x = np.ones((2, 3), "float32")
    callback = EquilibriumDiagnostics(model, x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
    found = [one for one in caught if "stop too early" in str(one.message)]
    assert len(found) == warns


def test_float64_with_the_default_gradient():
    layer = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(2, dtype="float64"))
    layer(np.ones((2, 3)))
    EquilibriumDiagnostics(layer, np.ones((2, 3))).on_train_end()
