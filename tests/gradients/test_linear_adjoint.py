"""Layers whose adjoint is solved by GMRES or BiCGStab."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras import gradients, solvers
from tests.regimes import slow

NAMES = ("gmres", "bicgstab")


def _layer(gradient, dtype="float32", tol=1e-6):
    keras.utils.set_random_seed(3)
    return deq_keras.layers.DEQ(
        deq_keras.layers.DenseCell(6, dtype=dtype),
        solver=solvers.Anderson(60, tol),
        gradient=gradient,
        regularizer=None,
        dtype=dtype,
    )


def _gradients(layer, inputs):
    with tf.GradientTape() as tape:
        outputs = layer(inputs, training=True)
        loss = tf.reduce_sum(tf.square(tf.cast(outputs, tf.float32)))
    return tape.gradient(loss, layer.trainable_weights)


def _inputs(dtype="float32"):
    return np.random.RandomState(0).normal(size=(4, 3)).astype(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name):
    """The adjoint is solved in float32, up to the rounding of the products."""
    inputs = _inputs()
    gradient = gradients.ImplicitGradient(
        {"class_name": name, "max_iter": 8, "tol": 1e-2}
    )
    expected = _gradients(_layer(gradient), inputs)
    actual = _gradients(_layer(gradient, "mixed_bfloat16", 1e-2), inputs)
    for one, two in zip(actual, expected, strict=True):
        assert one.dtype == tf.float32
        np.testing.assert_allclose(one, two, atol=0.1 * np.abs(two).max())


@pytest.mark.parametrize(
    "name, jit_compile", [("gmres", False), slow("bicgstab", True), slow("gmres", True)]
)
def test_training_records_the_adjoint(name, jit_compile):
    inputs = _inputs()
    gradient = gradients.ImplicitGradient(
        {"class_name": name, "max_iter": 25, "tol": 1e-4}
    )
    model = keras.Sequential([keras.Input((3,)), _layer(gradient)])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    history = model.fit(inputs, np.ones((4, 6)), epochs=2, verbose=0).history
    assert np.all(np.array(history["deq_adjoint_residual"]) <= 1e-4)
    assert np.all(np.array(history["deq_adjoint_evaluations"]) > 2)
    assert np.all(np.array(history["deq_adjoint_evaluations"]) < 25)
    assert history["loss"][1] < history["loss"][0]
