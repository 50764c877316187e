"""The residual penalty against its formula."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import regularizers
from deq_keras.core.linearization import linearize

SEED = tf.constant([3, 4])


def _penalty(function, point, **arguments):
    return regularizers.ResidualRegularizer(**arguments)(
        linearize(function, point), SEED
    )


def test_mean_excess_of_the_squared_relative_residual():
    point = tf.constant([[1.0, 1.0], [2.0, 0.1]], tf.float64)
    penalty = _penalty(lambda z: 0.5 * z + 1.0, point, weight=3.0, margin=0.4)
    value = 0.5 * point.numpy() + 1.0
    squares = np.sum((value - point) ** 2, axis=1) / np.sum(value**2, axis=1)
    assert squares.min() < 0.4**2 < squares.max()
    expected = 3.0 * np.mean(np.maximum(squares - 0.4**2, 0.0))
    np.testing.assert_allclose(penalty, expected, rtol=1e-12)


@pytest.mark.parametrize("value, expected", [(0.0, 0.0), (1.0, 3.0 * (1 - 1e-4))])
def test_states_that_are_zero(value, expected):
    penalty = _penalty(lambda z: z + value, tf.zeros((2, 3), tf.float64))
    np.testing.assert_allclose(penalty, expected)


def test_gradient_equals_finite_differences():
    random = np.random.RandomState(0)
    point = tf.constant(random.normal(size=(3, 4)))
    bias = tf.constant(random.normal(size=4))

    def squares(bias, divisor=None):
        value = tf.tanh(point) + bias
        size = tf.reduce_sum(value**2, axis=1)
        residual = tf.reduce_sum((value - point) ** 2, axis=1)
        return tf.reduce_mean(residual / (size if divisor is None else divisor))

    with tf.GradientTape() as tape:
        tape.watch(bias)
        penalty = _penalty(lambda z: tf.tanh(z) + bias, point, weight=1.0, margin=0.0)
    np.testing.assert_allclose(penalty, squares(bias), rtol=1e-12)

    def differences(divisor):
        step = 1e-6
        return [
            (squares(bias + shift, divisor) - squares(bias - shift, divisor))
            / (2 * step)
            for shift in step * np.eye(4)
        ]

    gradient = tape.gradient(penalty, bias)
    divisor = tf.reduce_sum((tf.tanh(point) + bias) ** 2, axis=1)
    np.testing.assert_allclose(gradient, differences(divisor), rtol=1e-6)
    # The divisor alone is the reason why the gradient of r^2 differs.
    assert not np.allclose(gradient, differences(None), rtol=0.05)
