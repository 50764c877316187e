"""`ResidualBlockCell` computes its formula from independent kernels."""

import numpy as np
import pytest

from deq_keras.layers import ResidualBlockCell
from tests.layers.formulas import convolve, kernel_of, normalize, randomize, relu


def _inputs(shape=(2, 6, 5, 3), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _cell(dtype="float64", **kwargs):
    arguments = {"filters": 8, "expansion": 2, "groups": 4, "seed": 1, **kwargs}
    return ResidualBlockCell(**arguments, dtype=dtype)


def _formula(cell, state, injected, kernel1, kernel2, mask):
    hidden = relu(normalize(cell.norm1, convolve(state, kernel1)))
    hidden = normalize(cell.norm2, convolve(hidden, kernel2) * mask + injected)
    return normalize(cell.norm3, relu(state + hidden))


@pytest.mark.parametrize(
    "kernel_size, channels, training, weight_normalization",
    [(3, 3, True, True), (5, 8, False, True), (5, 8, False, False)],
)
def test_formula(kernel_size, channels, training, weight_normalization):
    cell = _cell(
        kernel_size=kernel_size,
        dropout_rate=0.5,
        weight_normalization=weight_normalization,
    )
    inputs = _inputs((4, 6, 5, channels))
    cell.build(inputs.shape)
    randomize(cell, shift=0.3)
    injection = cell.inject(inputs, training=training)
    injected = inputs
    if channels != 8:
        injected = inputs @ cell.projection.kernel.numpy()[0, 0]
    mask = injection["mask"].numpy() if training else 1.0
    state = _inputs((4, 6, 5, 8), seed=2)
    kernels = kernel_of(cell.conv1), kernel_of(cell.conv2)
    expected = _formula(cell, state, injected, *kernels, mask)
    np.testing.assert_allclose(cell(state, injection), expected, atol=1e-10)


def test_initial_distribution():
    cell = ResidualBlockCell(64, expansion=1, seed=1)
    cell.build((None, 8, 8, 64))
    bound = 1 / np.sqrt(9 * 64)
    for layer in (cell.conv1, cell.conv2):
        kernel = layer.kernel.numpy()
        assert np.abs(kernel).max() <= bound * (1 + 1e-6)
        np.testing.assert_allclose(kernel.std(), bound / np.sqrt(3), rtol=0.02)


@pytest.mark.parametrize("seed", [None, 3])
def test_kernels_are_drawn_independently(seed):
    kernels = []
    for _ in range(2):
        cell = ResidualBlockCell(8, expansion=1, seed=seed)
        cell.build((None, 4, 4, 8))
        one, other = cell.conv1.kernel.numpy(), cell.conv2.kernel.numpy()
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.2
        kernels.append(one)
    assert np.array_equal(*kernels) == (seed is not None)
