"""One taped evaluation and any number of products with the Jacobian."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras.core.linearization import linearize
from deq_keras.core.problem import FixedPointProblem
from deq_keras.testing.problems import dense_jacobians


def test_forward_products_equal_the_dense_jacobian(regime):
    """Also in a loop, and through functions with a gradient of their own."""
    kernel = tf.random.stateless_normal((6, 6), [0, 3], dtype=tf.float64)

    @tf.custom_gradient
    def square(x):
        return x**2, lambda cotangent: 2.0 * x * cotangent

    def function(z):
        return tf.tanh(square(z) @ kernel + z)

    point = tf.random.stateless_normal((3, 6), [0, 1], dtype=tf.float64)
    vector = tf.random.stateless_normal((3, 6), [0, 2], dtype=tf.float64)
    jacobians = dense_jacobians(function, point)

    @regime
    def powers(point, vector):
        linearization = linearize(function, point)
        twice = tf.while_loop(
            lambda i, vector: i < 2,
            lambda i, vector: (i + 1, linearization.jvp(vector)),
            (0, vector),
        )[1]
        return linearization.jvp(vector), twice

    once, twice = powers(point, vector)
    expected = np.einsum("bij,bj->bi", jacobians, vector)
    np.testing.assert_allclose(once, expected, rtol=0, atol=1e-12)
    expected = np.einsum("bij,bj->bi", jacobians, expected)
    np.testing.assert_allclose(twice, expected, rtol=0, atol=1e-11)


def test_forward_products_of_a_masked_problem():
    """z = 0.5 z + mean(z) over two positions, one of which is padding."""
    mask = tf.constant([[True, False]])
    problem = FixedPointProblem(
        lambda z, u: 0.5 * z + tf.reduce_mean(z, axis=1, keepdims=True) + u,
        tf.ones((1, 2, 1)),
        mask,
    )
    linearization = problem.linearize(tf.zeros((1, 2, 1)))
    product = linearization.jvp(tf.constant([[[2.0], [4.0]]]))
    np.testing.assert_array_equal(product, [[[4.0], [0.0]]])


def test_nests_and_unused_leaves():
    point = {"used": tf.ones((2, 3)), "unused": tf.ones((2, 1))}

    def function(state):
        return {"used": 2.0 * state["used"], "unused": tf.ones((2, 1))}

    linearization = linearize(function, point)
    product = linearization.vjp(tree.map_structure(tf.ones_like, point))
    np.testing.assert_array_equal(product["used"], 2.0)
    np.testing.assert_array_equal(product["unused"], 0.0)
    product = linearization.jvp(tree.map_structure(tf.ones_like, point))
    np.testing.assert_array_equal(product["used"], 2.0)
    np.testing.assert_array_equal(product["unused"], 0.0)


def test_no_gradient_flows_into_the_point():
    point, scale = tf.ones((2, 3)), tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch([point, scale])
        linearization = linearize(lambda z: scale * z, point)
    to_point, to_scale = tape.gradient(linearization.value, [point, scale])
    assert to_point is None
    np.testing.assert_allclose(to_scale, 6.0)


def _nested(is_small, use, skip):
    return tf.cond(is_small, lambda: tf.cond(~is_small, skip, use), skip)


# Ways to compute `use()`, whose operations contain it as a function.
CONTROL_FLOW = {
    "none": lambda is_small, use, skip: use(),
    "cond": _nested,
    "case": lambda is_small, use, skip: tf.case([(is_small, use)], default=skip),
    "switch": lambda is_small, use, skip: keras.ops.switch(
        tf.cast(is_small, tf.int32), [skip, use]
    ),
    "while": lambda is_small, use, skip: tf.while_loop(
        lambda i, _: i < 1, lambda i, _: (i + 1, use()), (0, skip())
    )[1],
    "function": lambda is_small, use, skip: tf.function(use)(),
}


@pytest.mark.parametrize(
    "kind, regime",
    [*[(kind, "graph") for kind in CONTROL_FLOW], ("none", "eager"), ("cond", "xla")],
    indirect=["regime"],
)
def test_value_and_products_are_differentiable(kind, regime):
    """d/dw (f + |v^T J|^2) with J = w diag(tanh'(w z)), against the closed form,
    also if f computes its value in a branch, a loop or a function."""
    point = tf.constant([[0.3, -0.7]], tf.float64)
    weight = tf.constant(1.3, tf.float64)

    @regime
    def gradients(weight):
        def function(z):
            is_small = tf.reduce_max(z) < 1e3
            use, skip = (lambda: tf.tanh(weight * z)), (lambda: 0.0 * weight * z)
            return CONTROL_FLOW[kind](is_small, use, skip)

        with tf.GradientTape() as tape:
            tape.watch(weight)
            linearization = linearize(function, point)
            ones = tf.ones_like(point)
            squares = tf.square(linearization.vjp(ones))
            loss = tf.reduce_sum(linearization.value + squares)
        product = tf.while_loop(  # An adjoint solve does so.
            lambda i, _: i < 1, lambda i, _: (i + 1, linearization.vjp(ones)), (0, ones)
        )[1]
        return tape.gradient(loss, weight), product

    z, w = point.numpy(), 1.3
    slope = 1 - np.tanh(w * z) ** 2
    derivative = slope - 2 * w * z * np.tanh(w * z) * slope
    expected = np.sum(z * slope + 2 * w * slope * derivative), w * slope
    for one, two in zip(gradients(weight), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12)
