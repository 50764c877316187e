"""The fixed-point correction against closed forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, losses, solvers
from tests.layers.cells import FunctionCell


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, [0.64, 0.8, 1.0]),
        ({"gamma": 0.5}, [0.25, 0.5, 1.0]),
        ({"schedule": "linear"}, [0.4, 0.7, 1.0]),
        ({"schedule": "linear", "gamma": 0.0}, [1.0, 1.0, 1.0]),
        ({"schedule": "constant"}, [1.0, 1.0, 1.0]),
    ],
)
def test_weights_are_normalized_weights_of_torchdeq(arguments, expected):
    weights = losses.correction_weights(3, **arguments)
    np.testing.assert_allclose(weights, np.divide(expected, sum(expected)))


def _states(deq, inputs):
    states = [deq(inputs, training=True)]
    for _ in range(2):
        states.append(deq(inputs, initial_state=states[-1], training=True))
    return states


def test_linear_criterion_of_a_linear_cell():
    """f = a z + u: the states are u (1 - a^k) / (1 - a), from which one step has the
    derivative 1."""
    a, counts = 0.5, [2, 4, 6]
    u = tf.constant([[1.0], [3.0]], tf.float64)
    deq = layers.DEQ(
        FunctionCell(lambda z, u: a * z + u, dtype="float64"),
        solvers.FixedPointIteration(max_iter=2, tol=None),
        gradients.PhantomGradient(1, 1.0),
        regularizer=None,
    )
    with tf.GradientTape() as tape:
        tape.watch(u)
        loss = losses.fixed_point_correction(_states(deq, u), lambda z: 2.0 * z)
    # torchdeq's weights of three states are 0.64, 0.8 and 1, before division.
    weights = np.divide([0.64, 0.8, 1.0], 2.44)
    geometric = [(1 - a**k) / (1 - a) for k in counts]
    np.testing.assert_allclose(loss, 2 * u * np.dot(weights, geometric), rtol=1e-7)
    np.testing.assert_allclose(tape.gradient(loss, u), 0 * u + 2, rtol=1e-7)


def test_compiled_model_has_the_same_loss():
    inputs = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    targets = np.ones((4, 2), "float32")
    deq = layers.DEQ(
        layers.DenseCell(2, seed=1),
        solver=solvers.FixedPointIteration(max_iter=3, tol=None),
        gradient=gradients.PhantomGradient(1, 1.0),
        regularizer=None,
    )
    symbolic = keras.Input((3,))
    model = keras.Model(symbolic, _states(deq, symbolic))
    weights = losses.correction_weights(3)
    model.compile("sgd", ["mse"] * 3, loss_weights=weights, run_eagerly=True)
    expected = losses.fixed_point_correction(
        model(inputs, training=True), lambda z: tf.reduce_mean((z - targets) ** 2)
    )
    history = model.fit(inputs, [targets] * 3, verbose=0).history
    np.testing.assert_allclose(history["loss"][0], expected, rtol=1e-5)
