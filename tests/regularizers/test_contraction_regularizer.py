"""The contraction penalty against explicit Jacobians."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import regularizers
from deq_keras.core.linearization import linearize

SEED = tf.constant([3, 4])


def _penalty(function, point, **arguments):
    regularizer = regularizers.ContractionRegularizer(**arguments)
    return regularizer(linearize(function, point), SEED)


@pytest.mark.parametrize(
    "radius, regime", [(0.5, "xla"), (1.5, "eager")], indirect=["regime"]
)
def test_many_iterations_find_the_squared_spectral_radius(radius, regime):
    jacobian = tf.constant(np.diag([radius, -0.2, 0.1, 0.05]))

    @regime
    def penalty():
        return _penalty(
            lambda z: tf.matmul(z, jacobian),
            tf.ones((3, 4), tf.float64),
            weight=2.0,
            margin=0.0,
            residual_weight=0.0,
            num_iterations=30,
        )

    np.testing.assert_allclose(penalty(), 2.0 * radius**2, rtol=1e-9)


def test_the_residual_term_is_that_of_the_residual_penalty():
    point = tf.constant([[1.0, 1.0], [2.0, 0.1]], tf.float64)
    penalty = _penalty(
        lambda z: 0.5 * z + 1.0,
        point,
        weight=0.0,
        residual_weight=3.0,
        residual_margin=0.4,
    )
    value = 0.5 * point.numpy() + 1.0
    squares = np.sum((value - point) ** 2, axis=1) / np.sum(value**2, axis=1)
    assert squares.min() < 0.4**2 < squares.max()
    expected = 3.0 * np.mean(np.maximum(squares - 0.4**2, 0.0))
    np.testing.assert_allclose(penalty, expected, rtol=1e-12)


@pytest.mark.parametrize("radius, expected", [(0.8, 0.0), (1.0, 0.19)])
def test_growth_below_the_margin_is_free(radius, expected):
    with tf.GradientTape() as tape:
        scale = tf.constant(radius, tf.float64)
        tape.watch(scale)
        penalty = _penalty(
            lambda z: scale * z,
            tf.zeros((2, 3), tf.float64),
            weight=1.0,
            margin=0.9,
            residual_weight=0.0,
        )
    np.testing.assert_allclose(penalty, expected, atol=1e-12)
    if radius < 0.9:
        np.testing.assert_array_equal(tape.gradient(penalty, scale), 0.0)


def test_each_sample_has_its_margin():
    jacobians = tf.constant(np.stack([0.5 * np.eye(3), 2.0 * np.eye(3)]))
    penalty = _penalty(
        lambda z: tf.linalg.matvec(jacobians, z),
        tf.zeros((2, 3), tf.float64),
        weight=1.0,
        margin=1.0,
        residual_weight=0.0,
    )
    np.testing.assert_allclose(penalty, (0.0 + 3.0) / 2, rtol=1e-12)


def test_vanishes_for_a_constant_function_at_its_equilibrium():
    penalty = _penalty(lambda z: tf.ones_like(z), tf.ones((2, 3)))
    np.testing.assert_array_equal(penalty, 0.0)
    nothing = _penalty(lambda z: tf.zeros_like(z), tf.zeros((2, 3)))
    np.testing.assert_array_equal(nothing, 0.0)


def test_gradient_of_the_growth():
    """For a symmetric Jacobian w is an eigenvector, so d|J w|^2 = d lambda^2."""
    scale = tf.constant(0.7, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(scale)
        penalty = _penalty(
            lambda z: tf.concat([scale * z[:, :1], 0.01 * z[:, 1:]], axis=1),
            tf.zeros((2, 3), tf.float64),
            weight=1.0,
            margin=0.0,
            residual_weight=0.0,
            num_iterations=12,
        )
    np.testing.assert_allclose(tape.gradient(penalty, scale), 1.4, rtol=1e-6)
