"""Warnings of gradients that are noise, and of a cell that expands."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import callbacks, gradients, layers, solvers
from tests.regimes import slow

OURS = "Implicit gradients were taken"
INPUTS = np.ones((4, 2), "float32")


class SlowCell(layers.EquilibriumCell):
    """f(z, u) = 0.99 z + k u: a small residual hides a large error."""

    def build(self, state_shape, injection_shape):
        self.k = self.add_weight(shape=(), initializer="ones")

    def call(self, state, injection):
        return 0.99 * state + self.k * injection


def _warnings(solver, gradient="implicit", epochs=2, run_eagerly=True):
    deq = layers.DEQ(SlowCell(), solver, gradient, regularizer=None, name="deq")
    model = keras.Sequential([keras.Input((2,)), deq])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=run_eagerly)
    callback = callbacks.EquilibriumWarnings(model)
    fit = {"epochs": epochs, "verbose": 0, "callbacks": [callback]}
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        logs = model.fit(INPUTS, INPUTS, **fit).history
    return [str(w.message) for w in record if OURS in str(w.message)], logs


@pytest.mark.parametrize(
    ("adjoint", "error", "epochs"),
    [(None, 84, 3), slow(solvers.GMRES(5, 1e-4), 61, 1)],
    ids=["both", "forward"],
)
def test_slow_solves_warn_once(adjoint, error, epochs):
    """The series miss 0.99 to the power of 49 or 50: 0.611 or 0.605."""
    gradient = gradients.ImplicitGradient(adjoint)
    solver = solvers.FixedPointIteration(50, 1e-3)
    (message,), logs = _warnings(solver, gradient, epochs, run_eagerly=False)
    assert f"{error}%" in message and "61% from forward" in message
    assert "`max_iter`" in message and ("GMRES" in message) == (adjoint is None)
    np.testing.assert_allclose(logs["deq_gradient_error"], error / 100, atol=6e-3)
    # The residuals show nothing.
    assert max(logs["deq_residual"] + logs["deq_adjoint_residual"]) < 0.02


def test_converged_solves_do_not_warn():
    assert not _warnings(solvers.Anderson(50, 1e-4))[0]


def test_other_gradients_do_not_warn():
    messages, logs = _warnings(solvers.Anderson(50, 1e-4), gradients.NeumannGradient(3))
    assert not messages and "deq_gradient_error" not in logs


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([(0.2, 0.0), (np.nan, 0.0), (0.4, 0.0)], "30%.*30% from forward.*`solver`"),
        ([(0.2, 0.0), (0.2, 0.0)], None),
        ([(0.4, 0.0), *9 * [(0.0, np.nan)]], "40%.*give `solver`"),
        ([(0.5, 0.5)], "75%"),
        ([], None),
    ],
)
def test_mean_error_warns_once(errors, expected):
    layer = layers.DEQ(SlowCell(), gradient="implicit", name="deq")
    callback = callbacks.EquilibriumWarnings(layer)
    metric = layer._metrics_of_solves.gradient_error
    update = tf.function(metric.update_state)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for epoch in range(2):
            callback.on_epoch_begin(epoch)
            for pair in errors:
                update(*map(tf.constant, pair))
            callback.on_test_begin()
            metric.reset_state()
            assert metric.result() == {}  # Without a record.
            callback.on_epoch_end(epoch)
    messages = [str(w.message) for w in record if w.category is UserWarning]
    assert len(messages) == (expected is not None)
    assert all(re.search(expected, message) for message in messages)


def _fit(cell, validation_data=None, epochs=1):
    deq = layers.DEQ(cell, name="deq", seed=0)
    model = keras.Sequential([keras.Input((4,)), deq, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    inputs = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    data = inputs, inputs[:, :1]
    callback = callbacks.EquilibriumWarnings(model)
    options = {"validation_data": data} if validation_data else {}
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(*data, epochs=epochs, verbose=0, callbacks=[callback], **options)
    return [str(w.message) for w in record if "no equilibrium" in str(w.message)]


def _expanding(factor):
    kernel = keras.initializers.Identity(factor)
    return layers.cell_from(keras.layers.Dense(8, "relu", kernel_initializer=kernel))


@pytest.mark.parametrize("validation_data", [False, slow(True)])
def test_cell_that_expands_warns_once(validation_data):
    # The state doubles in each step.
    (message,) = _fit(_expanding(2.0), validation_data, epochs=2)
    assert "'deq' has no equilibrium: an epoch" in message


def test_weights_that_are_not_finite_warn():
    (message,) = _fit(_expanding(np.nan))
    assert "weights are not finite" in message


def test_healthy_training_does_not_warn():
    assert not _fit(layers.DenseCell(8, seed=0))
