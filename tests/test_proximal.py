"""Proximal activations solve their inclusions and have the right derivatives."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import proximal
from tests import harness
from tests.regimes import ALL_BUT_EAGER_ARE_SLOW

FUNCTIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "tanh": np.tanh,
}
NUMBERS = np.concatenate([np.linspace(-8, 8, 81), [-300.0, 300.0]])


@pytest.fixture(params=FUNCTIONS)
def name(request):
    """Each of the maps in turn."""
    return request.param


def test_values_and_derivatives(name):
    prox, numbers = proximal.get(name), tf.constant(NUMBERS + 0.01)
    np.testing.assert_allclose(prox(numbers), FUNCTIONS[name](NUMBERS + 0.01), 1e-12)
    slope = harness.gradients(lambda: prox(numbers), numbers)
    np.testing.assert_allclose(prox.derivative(numbers), slope, atol=1e-14)


@ALL_BUT_EAGER_ARE_SLOW
@pytest.mark.parametrize("alpha", [1e-3, 4.0])
def test_proximal_map_solves_its_inclusion(name, alpha, regime):
    """For z = s(p), the subgradient of h is p - z: z + alpha (p - z) = x."""
    prox = proximal.get(name)
    points = tf.constant(NUMBERS)
    values = prox(points)
    inputs = values + alpha * (points - values)
    found = regime(lambda x: prox.proximal(x, alpha))(inputs)
    np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-9)


def test_derivative_of_the_proximal_map():
    prox, alpha, step = proximal.get("tanh"), 0.3, 1e-6
    numbers = tf.constant(np.linspace(-2, 2, 9))
    slope = harness.gradients(lambda: prox.proximal(numbers, alpha), numbers)
    after, before = (prox.proximal(numbers + e, alpha) for e in (step, -step))
    np.testing.assert_allclose(slope, (after - before) / (2 * step), rtol=1e-6)


def test_second_derivative_of_the_proximal_map():
    prox, alpha, step = proximal.get("tanh"), 0.3, 1e-4
    numbers = tf.constant(np.linspace(-2, 2, 9))
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        slope = harness.gradients(lambda: prox.proximal(numbers, alpha), numbers)
    before, middle, after = (
        prox.proximal(numbers + e, alpha) for e in (-step, 0.0, step)
    )
    curvature = (after - 2 * middle + before) / step**2
    np.testing.assert_allclose(tape.gradient(slope, numbers), curvature, atol=1e-5)


def test_the_proximal_map_in_bfloat16():
    prox, numbers = proximal.get("tanh"), tf.linspace(-3.0, 3.0, 13)
    found = prox.proximal(tf.cast(numbers, tf.bfloat16), 0.3)
    expected = prox.proximal(numbers, 0.3)
    np.testing.assert_allclose(tf.cast(found, tf.float32), expected, atol=0.03)


def test_non_finite_inputs_stop():
    found = proximal.get("tanh").proximal(tf.constant([np.nan, np.inf, 0.0]), 0.5)
    assert not np.isfinite(found[0]) and found[2] == 0.0


def test_names_and_configs():
    assert isinstance(proximal.get("tanh"), proximal.Tanh)
    own = proximal.Softplus()
    assert proximal.get(own) is own
    with pytest.raises(ValueError, match="Did you mean 'sigmoid'"):
        proximal.get("sigmoidal")
