import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.callbacks import EquilibriumDiagnostics
from tests.layers.cells import FunctionCell, LinearCell


def fitted(inputs, **arguments):
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    model = keras.Sequential([keras.layers.Rescaling(2.0), layer])
    model.compile(keras.optimizers.SGD(1e-3), "mse", run_eagerly=True)
    callback = EquilibriumDiagnostics(model, inputs, **arguments)
    x = np.ones((8, 3), "float32")
    fit = {"epochs": 2, "verbose": 0, "callbacks": [callback]}
    return model.fit(x, 6 * x, **fit).history, float(layer.cell.rate)


def test_logs_the_radius_and_the_norm_of_each_epoch():
    history, rate = fitted(np.ones((2, 3), "float32"))
    radii = history["deq_spectral_radius"]
    assert radii[-1] == pytest.approx(rate, rel=1e-3) and radii[0] != radii[1]
    # The norm of a multiple of the identity, over sqrt(dimensions), is its factor.
    np.testing.assert_allclose(history["deq_jacobian_norm"], radii, rtol=0.3)
    assert history["deq_spectral_radius_converged"] == [1.0, 1.0]


def test_frequency_and_non_finite_inputs():
    history, _ = fitted(np.array([[1.0] * 3, [np.nan] * 3], "float32"), freq=2)
    assert history["deq_spectral_radius_converged"] == [0.5]
    assert np.isfinite(history["deq_jacobian_norm"]).all()


class CycleCell(deq_keras.layers.EquilibriumCell):
    """f(z, x) = z / 2 where x is positive, and z moved round a circle elsewhere."""

    def call(self, state, injection):
        return keras.ops.where(injection > 0, 0.5 * state, keras.ops.roll(state, 1, 1))


@pytest.mark.parametrize("signs, share", [((1, -1, -1, -1), 0.25), ((-1, -1), 0.0)])
def test_mean_is_over_converged_radii(signs, share):
    layer = deq_keras.layers.DEQ(CycleCell(), regularizer=None, name="deq")
    x = np.ones((len(signs), 40), "float32") * np.array(signs, "float32")[:, None]
    layer(x)
    callback = EquilibriumDiagnostics(layer, lambda: x, num_iterations=15)
    logs = {}
    callback.on_train_begin()
    callback.on_epoch_end(0, logs)
    assert logs["deq_spectral_radius_converged"] == share
    expected = 0.5 if share else float("nan")
    assert logs["deq_spectral_radius"] == pytest.approx(expected, nan_ok=True)


def test_function_is_called_at_each_measurement():
    layer = deq_keras.layers.DEQ(LinearCell(), regularizer=None, name="deq")
    embedding = keras.layers.Embedding(4, 3, mask_zero=True)
    tokens = np.array([[1, 2, 3], [1, 0, 0]])
    # With one state, |df/dz| is proportional to the root of the unmasked positions.
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, layer])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    rows = iter([0, 1, 1])

    def inputs():
        row = next(rows)
        encoded = embedding(tf.constant(tokens[row : row + 1]))
        assert isinstance(encoded.numpy(), np.ndarray)
        return encoded

    callback = EquilibriumDiagnostics(layer, inputs)
    y = np.zeros((2, 3, 3), "float32")
    history = model.fit(tokens, y, epochs=2, verbose=0, callbacks=[callback]).history
    whole, padded = history["deq_jacobian_norm"]
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
