"""Equilibrium layers in branches, loops, vectorized maps and recomputed steps."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests import harness
from tests.layers.cells import FunctionCell
from tests.regimes import slow

INPUTS = np.random.RandomState(0).normal(size=(3, 4)).astype("float32")
GRADIENTS = {
    "truncated": gradients.TruncatedGradient(8, 0, checkpoints=8),
    **{name: name for name in ("neumann", "unrolled", "reversible")},
}


def _fast(name):
    """All gradients, of which all but one are slow tests."""
    parameters = [one if one == name else slow(one) for one in GRADIENTS]
    return pytest.mark.parametrize("gradient", parameters)


def _layer(gradient):
    solver = solvers.FixedPointIteration(21, 1e-6)
    cell = layers.DenseCell(4, seed=1)
    deq = layers.DEQ(cell, solver, GRADIENTS[gradient], None)
    deq(INPUTS)
    return deq


def _gradients(deq, apply, inputs):
    return harness.gradients(lambda: apply(inputs) ** 2, deq.trainable_variables)


@_fast("truncated")
def test_branch_in_a_loop_has_the_gradient_of_plain_calls(gradient):
    deq = _layer(gradient)

    def call(x):
        return deq(x, training=True)

    def branch(x):
        return keras.ops.cond(tf.reduce_sum(x) > -1e9, lambda: call(x), lambda: x)

    def loop(x):
        def step(count, z):
            return count + 1, branch(z)

        return tf.while_loop(lambda count, _: count < 2, step, (0, x))[1]

    inputs = tf.constant(INPUTS)
    received = tf.function(_gradients, autograph=False)(deq, loop, inputs)
    expected = _gradients(deq, lambda x: call(call(x)), inputs)
    for one, two in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gradient", ["implicit", slow("neumann")])
def test_a_cell_with_a_branch_trains_like_the_cell_without(gradient):
    """With a penalty, whose gradient differentiates products with df/dz."""

    class Branch(layers.DenseCell):
        def call(self, state, injection):
            step = lambda: super(Branch, self).call(state, injection)  # noqa: E731
            return keras.ops.cond(tf.reduce_max(state) < 9.0, step, lambda: state)

    trained = []
    for cell in (layers.DenseCell, Branch):
        keras.utils.set_random_seed(1)
        deq = layers.DEQ(cell(4, seed=1), "anderson", gradient, "contraction")
        model = keras.Sequential([keras.Input((4,)), deq])
        model.compile("sgd", "mse")
        model.fit(INPUTS, INPUTS, epochs=2, verbose=0)
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@_fast("neumann")
@pytest.mark.usefixtures("full_float32")
def test_vectorized_map_gives_gradients_of_each_sample(gradient):
    deq = _layer(gradient)

    def of_sample(row):
        return _gradients(deq, lambda x: deq(x, training=True), row[None])

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    received = tf.vectorized_map(of_sample, tf.constant(INPUTS))
    for i, row in enumerate(tf.constant(INPUTS)):
        for one, two in zip(received, of_sample(row), strict=True):
            np.testing.assert_allclose(one[i], two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "gradient",
    [
        gradients.TruncatedGradient(4, 0, checkpoints=4),
        gradients.TruncatedGradient(4, 0, checkpoints=2),
        gradients.UnrolledGradient(checkpoints=2),
    ],
    ids=str,
)
def test_recomputed_steps_that_first_stop_a_gradient(gradient):
    """As in a straight-through estimate, or a kernel divided by its detached norm."""
    cell = FunctionCell(lambda z, u: 0.1 * z / (1 + tf.stop_gradient(u) ** 2) + u)
    deq = layers.DEQ(cell, solvers.FixedPointIteration(8, None), gradient, None)

    def slope(inputs):
        return harness.gradients(lambda: deq(inputs, training=True), inputs)

    inputs = tf.constant(INPUTS)
    expected = slope(inputs)
    assert np.all(np.abs(expected) > 1.0)
    received = tf.function(slope, autograph=False)(inputs)
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_captured_tensors_of_recomputed_steps_raise():
    constant = tf.constant(np.full((4, 4), 0.1, "float32"))
    cell = FunctionCell(lambda z, u: z @ constant + u)
    for gradient in (
        gradients.TruncatedGradient(4, 0, checkpoints=4),
        gradients.UnrolledGradient(checkpoints=2),
    ):
        deq = layers.DEQ(cell, solvers.FixedPointIteration(8), gradient, None)
        deq(INPUTS)
        with pytest.raises(ValueError, match=r"`checkpoints`.*Received.*\(4, 4\)"):
            tf.function(lambda x, deq=deq: deq(x, training=True))(INPUTS)
