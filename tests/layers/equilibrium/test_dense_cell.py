"""`DenseCell` computes its formula and starts with its spectral radius."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import DenseCell
from deq_keras.testing import check_cell
from tests.layers.formulas import normal, randomize


@pytest.mark.parametrize(
    "weight_normalization, layer_normalization", [(True, True), (False, False)]
)
def test_formula(weight_normalization, layer_normalization):
    cell = DenseCell(
        6,
        weight_normalization=weight_normalization,
        layer_normalization=layer_normalization,
        dtype="float64",
    )
    inputs, state = normal((3, 4)), normal((3, 6), seed=1)
    cell.build(inputs.shape)
    randomize(cell)
    if weight_normalization:
        v, g = cell.recurrent.direction.numpy(), cell.recurrent.gain.numpy()
        kernel = v * g / np.sqrt(np.sum(v**2, axis=0))
    else:
        kernel = cell.recurrent.kernel.numpy()
    injected = inputs @ cell.projection.kernel.numpy() + cell.projection.bias.numpy()
    expected = np.tanh(state @ kernel + injected)
    if layer_normalization:
        variance = expected.var(axis=1, keepdims=True)
        expected = expected - expected.mean(axis=1, keepdims=True)
        expected = expected / np.sqrt(variance + 1e-5) * cell.norm.gamma.numpy()
        expected = expected + cell.norm.beta.numpy()
    injection = cell.inject(inputs)
    np.testing.assert_allclose(injection["inputs"], injected, atol=1e-13)
    np.testing.assert_allclose(cell(state, injection), expected, atol=1e-12)
    np.testing.assert_array_equal(cell.initial_state(injection), np.zeros((3, 6)))


@pytest.mark.parametrize("weight_normalization", [True, False])
@pytest.mark.usefixtures("full_float32")
def test_initializer_draws_the_kernel_of_a_wide_cell(weight_normalization):
    cell = DenseCell(200, "linear", weight_normalization, kernel_initializer="identity")
    injection = cell.inject(np.zeros((3, 2), "float32"))
    state = normal((3, 200)).astype("float32")
    np.testing.assert_allclose(cell(state, injection), state, rtol=1e-6)
    if not weight_normalization:
        norm = cell.lipschitz_constant(injection)
        np.testing.assert_allclose(norm, 1.0, rtol=1e-2)


@pytest.mark.parametrize("weight_normalization", [True, False])
def test_an_update_of_a_wide_cell_does_not_expand_it(weight_normalization):
    cell = DenseCell(1024, weight_normalization=weight_normalization, seed=1)
    inputs = normal((16, 2)).astype("float32") + 1.0
    optimizer = keras.optimizers.Adam(1e-3)
    state = tf.ones((16, 1024)) / 32.0  # of norm 1
    for _ in range(2):
        with tf.GradientTape() as tape:
            outputs = cell(state, cell.inject(inputs))
            loss = tf.reduce_sum(outputs)
        weights = cell.recurrent.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
    injection = cell.inject(inputs)
    before, after = (cell(one, injection) for one in (state, 2 * state))
    # Without the scale, the two updates would add up to 2e-3 * 1024 to the norm of W.
    assert tf.reduce_max(tf.norm(after - before, axis=1)) < 1.0


def test_initial_spectral_radius():
    cell = DenseCell(200, "linear", seed=1)
    injection = cell.inject(np.zeros((1, 3), "float32"))
    kernel = cell(np.eye(200, dtype="float32"), injection).numpy()
    assert np.abs(kernel).max() <= 1 / np.sqrt(200)
    radius = np.abs(np.linalg.eigvals(kernel)).max()
    np.testing.assert_allclose(radius, 1 / np.sqrt(3), rtol=0.15)


def test_equal_seeds_give_equal_weights():
    one, same, other = (DenseCell(4, seed=seed) for seed in (1, 1, 2))
    for cell in (one, same, other):
        cell.build((None, 4))
    np.testing.assert_array_equal(one.recurrent.kernel, same.recurrent.kernel)
    assert np.any(one.recurrent.kernel != other.recurrent.kernel)
    assert np.any(one.recurrent.kernel != one.projection.kernel)


def test_contract():
    norms = {"weight_normalization": True, "layer_normalization": True}
    check_cell(lambda **dtype: DenseCell(6, **norms, **dtype), normal((3, 4)))
