"""Second derivatives of the layer, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests.layers.cells import FunctionCell
from tests.regimes import slow

SLOPE = 0.4
INPUTS = np.array([[0.3], [-0.7], [1.2]])


def _layer(gradient, solver=None):
    cell = FunctionCell(lambda z, u: tf.tanh(SLOPE * z + u), dtype="float64")
    solver = solver or solvers.FixedPointIteration(max_iter=60, tol=1e-13)
    return layers.DEQ(cell, solver, gradient, regularizer=None)


def _derivatives(deq, training):
    inputs = tf.constant(INPUTS)
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            value = deq(inputs, training=training)
        first = inner.gradient(value, inputs)
    return value, first, outer.gradient(first, inputs)


def _exact(value):
    """dz/du = s / (1 - a s) with s = 1 - z^2, and its derivative."""
    s = 1 - value**2
    first = s / (1 - SLOPE * s)
    return first, -2 * value * first / (1 - SLOPE * s) ** 2


@pytest.mark.parametrize(
    "gradient, regime",
    [("unrolled", "eager"), (gradients.TruncatedGradient(60, 0), "graph")],
    ids=["unrolled", "truncated"],
    indirect=["regime"],
)
def test_second_derivatives_in_training(gradient, regime):
    deq = _layer(gradient)
    compute = regime(lambda: _derivatives(deq, training=True))
    value, first, second = (tensor.numpy() for tensor in compute())
    np.testing.assert_allclose(value, np.tanh(SLOPE * value + INPUTS), atol=1e-12)
    for actual, expected in zip((first, second), _exact(value), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "gradient, training, name, regime",
    [
        ("truncated", False, "TruncatedGradient", "eager"),
        ("implicit", True, "ImplicitGradient", "eager"),
        slow("neumann", True, "NeumannGradient", "graph"),
        ("reversible", True, "ReversibleGradient", "eager"),
    ],
    indirect=["regime"],
)
def test_missing_second_derivative_raises(gradient, training, name, regime):
    compute = regime(lambda: _derivatives(_layer(gradient), training))
    with pytest.raises(NotImplementedError, match=f"{name}.*UnrolledGradient"):
        compute()


@pytest.mark.parametrize(
    "gradient, training, name, regime",
    [
        (
            gradients.TruncatedGradient(1, 60, free_fraction=1.0, free_noise=0.0),
            True,
            "TruncatedGradient",
            "graph",
        ),
        (gradients.PhantomGradient(1, 1.0), True, "PhantomGradient", "eager"),
        (gradients.TruncatedGradient(1, 0), False, "TruncatedGradient", "eager"),
    ],
    ids=["truncated", "phantom", "inference"],
    indirect=["regime"],
)
def test_second_derivatives_of_last_steps_warn(gradient, training, name, regime):
    """One step from an equilibrium z: the derivatives of tanh(a z + u) for u."""
    deq = _layer(gradient)
    with pytest.warns(UserWarning, match=name):
        compute = regime(lambda: _derivatives(deq, training))
        value, first, second = (tensor.numpy() for tensor in compute())
    slope = 1 - value**2
    np.testing.assert_allclose(first, slope, rtol=1e-9)
    np.testing.assert_allclose(second, -2 * value * slope, rtol=1e-9)


@pytest.mark.parametrize(
    "gradient, training", [("implicit", False), ("truncated", True)]
)
def test_forward_mode_raises(gradient, training):
    deq = layers.DEQ(layers.DenseCell(3), gradient=gradient, regularizer=None)
    inputs = tf.ones((2, 4))
    deq(inputs)
    with (
        tf.GradientTape() as tape,  # The call seems to have a second derivative.
        tf.autodiff.ForwardAccumulator(inputs, tf.ones_like(inputs)),
        pytest.raises(NotImplementedError, match="jvp"),
    ):
        tape.watch(inputs)
        deq(inputs, training=training)
