"""Second derivatives of the activations of Keras, in penalties and certificates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.regimes import slow

pytestmark = pytest.mark.usefixtures("full_float32")

# Every activation that keeps the shape of its input, and needs no arguments.
ACTIVATIONS = (
    "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu "
    "linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink "
    "softmax softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus tanh "
    "tanh_shrink"
).split()
# Smooth ones, one with kinks, and those that TensorFlow does not differentiate twice.
OF_EACH_KIND = ("elu", "gelu", "relu6", "selu", "softmax", "softsign", "sparsemax")
INPUTS = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def _deq(activation, regularizer=None):
    cell = layers.DenseCell(5, activation, seed=1)
    return layers.DEQ(cell, solvers.FixedPointIteration(4), "neumann", regularizer)


@pytest.fixture(scope="module")
def deq():
    """A layer whose cell gets each activation in turn."""
    deq = _deq("tanh")
    deq.build(INPUTS.shape)
    return deq


@pytest.mark.parametrize(
    "activation", [name if name in OF_EACH_KIND else slow(name) for name in ACTIVATIONS]
)
def test_products_and_penalties_differentiate_every_activation(deq, activation):
    deq.cell.activation = keras.activations.get(activation)
    problem = deq.problem(INPUTS)
    state, vector, cotangent = tf.unstack(
        tf.random.stateless_normal((3, 3, 5), seed=(0, 3))
    )
    with tf.GradientTape() as tape:
        linearization = problem.linearize(state)
        transposed = linearization.vjp(cotangent)
        penalty = tf.reduce_sum(transposed * vector)
    product = linearization.jvp(vector)
    np.testing.assert_allclose(penalty, tf.reduce_sum(product * cotangent), rtol=1e-4)
    kernel = deq.cell.recurrent.kernel.value
    assert np.all(np.isfinite(tape.gradient(penalty, kernel)))


def test_the_second_derivative_of_softsign():
    x = tf.constant([-2.0, -0.5, 0.25, 3.0], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = keras.activations.softsign(x)
        slope = inner.gradient(value, x)
    np.testing.assert_allclose(slope, 1 / (1 + np.abs(x)) ** 2)
    expected = -2 * np.sign(x) / (1 + np.abs(x)) ** 3
    np.testing.assert_allclose(outer.gradient(slope, x), expected)


def test_an_operation_without_a_second_derivative_is_named():
    class ResizingCell(layers.EquilibriumCell):
        def call(self, state, injection):
            kernel = tf.image.resize(state, (2, 2), "bicubic")
            return 0.1 * kernel + injection

    problem = layers.DEQ(ResizingCell()).problem(np.ones((2, 2, 2, 1), "float32"))
    state = tf.zeros((2, 2, 2, 1))
    with pytest.raises(ValueError, match="Received: .*ResizeBicubicGrad"):
        problem.linearize(state).jvp(state)
