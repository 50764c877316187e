"""The warning of implicit gradients with a large error."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.metrics import GradientError
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
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        logs = model.fit(INPUTS, INPUTS, epochs=epochs, verbose=0).history
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
    ("errors", "is_told"),
    [([0.2, 0.4], True), ([0.2, np.nan, 0.4], True), ([0.2, 0.2], False), ([], False)],
)
def test_mean_error_warns_once(errors, is_told):
    metric = GradientError(name="error")
    update = tf.function(metric.update_state)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for _ in range(2):
            for error in errors:
                update(tf.constant(error), tf.constant(0.0))
            metric.reset_state()
            assert metric.result() == {}  # Without a record.
    messages = [str(w.message) for w in record if OURS in str(w.message)]
    assert len(messages) == is_told
    assert all("30% (error): 30% from forward" in message for message in messages)


def test_undefined_adjoint_errors_leave_a_remedy():
    metric = GradientError()
    for forward, adjoint in [(0.4, 0.0), *9 * [(0.0, np.nan)]]:
        metric.update_state(forward, adjoint)
    with pytest.warns(UserWarning, match="give `solver`"):
        metric.reset_state()


def test_a_threshold():
    metric = GradientError(threshold=0.5)
    metric.update_state(0.0, 0.4)
    metric.reset_state()
    metric.update_state(0.5, 0.5)
    with pytest.warns(UserWarning, match="error of 75%"):
        metric.reset_state()
    copy = GradientError.from_config(metric.get_config())
    assert copy.threshold == 0.5
