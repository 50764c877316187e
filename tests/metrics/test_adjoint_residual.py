"""The warning of gradients whose adjoint solves are far from done."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.metrics import AdjointResidual

OURS = "Implicit gradients were taken with adjoint solves"
INPUTS = np.ones((4, 2), "float32")


class SlowCell(layers.EquilibriumCell):
    """f(z, u) = 0.99 z + k u: a small residual hides a large error."""

    def build(self, state_shape, injection_shape):
        self.k = self.add_weight(shape=(), initializer="ones")

    def call(self, state, injection):
        return 0.99 * state + self.k * injection


def _warnings(solver, gradient="implicit", epochs=2):
    """Returns what training says, with the layer's gradient for k."""
    deq = layers.DEQ(SlowCell(), solver, gradient, regularizer=None, name="deq")
    model = keras.Sequential([keras.Input((2,)), deq])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(INPUTS, INPUTS, epochs=epochs, verbose=0)
    return [str(w.message) for w in record if OURS in str(w.message)]


def test_a_slow_adjoint_solve_warns_once():
    (message,) = _warnings(solvers.FixedPointIteration(50, 1e-3), epochs=3)
    # What is missing of the series: 0.99 to the power of 50 is 0.605.
    assert "about 58%" in message and "deq_adjoint_residual" in message
    assert "max_iter" in message


@pytest.mark.parametrize(
    "solver",
    [
        solvers.FixedPointIteration(1000, 1e-5),
        solvers.Anderson(50, 1e-4),
        solvers.Broyden(50, 1e-4),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_a_solve_that_is_done_does_not_warn(solver):
    assert not _warnings(solver)


def test_a_gradient_that_is_not_exact_does_not_warn():
    assert not _warnings(solvers.Anderson(50, 1e-4), gradients.NeumannGradient(3))


@pytest.mark.parametrize(
    ("errors", "is_told"),
    [
        ([0.2, 0.4], True),
        ([0.2, np.nan, 0.4], True),
        ([0.2, 0.2], False),
        ([np.nan, np.nan], False),
        (None, False),
    ],
)
def test_the_mean_error_is_judged(errors, is_told):
    metric = AdjointResidual(name="adjoint")
    count = 2 if errors is None else len(errors)
    errors = None if errors is None else np.float32(errors)
    update = tf.function(metric.update_state)
    for _ in range(2):
        update(np.full(count, 0.01, "float32"), errors)
    assert float(metric.result()) == pytest.approx(0.01)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        metric.reset_state()
        update(np.full(count, 0.01, "float32"), errors)
        metric.reset_state()
    messages = [str(w.message) for w in record if OURS in str(w.message)]
    assert len(messages) == is_told
    assert all("about 30% (adjoint)" in message for message in messages)


def test_a_threshold():
    metric = AdjointResidual(threshold=0.5)
    metric.update_state(np.zeros(2), np.array([0.4, 0.4]))
    metric.reset_state()
    metric.update_state(np.zeros(2), np.array([0.6, 0.6]))
    with pytest.warns(UserWarning, match="about 60%"):
        metric.reset_state()
    copy = AdjointResidual.from_config(metric.get_config())
    assert copy.threshold == 0.5
    with pytest.raises(ValueError, match="`threshold`.*Received: threshold=0"):
        AdjointResidual(threshold=0)
