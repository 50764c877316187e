"""Units and blocks of convolutions: padding, statistics and projections."""

import numpy as np
import pytest

from deq_keras import layers
from tests.layers.formulas import convolve, relu


def _inputs(shape=(4, 6, 5, 3), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _convolve(layer, inputs):
    outputs = convolve(inputs, layer.kernel.numpy(), layer.strides[0])
    return outputs + layer.bias.numpy() if layer.use_bias else outputs


@pytest.mark.parametrize(
    "size, strides, kernel_size",
    [((6, 8), 1, 3), ((5, 7), 2, 5), ((6, 5), 3, (3, 5)), ((1, 2), 2, 1)],
)
def test_convolution_pads_all_sides_alike(size, strides, kernel_size):
    layer = layers.SymmetricConv2D(4, kernel_size, strides=strides, dtype="float64")
    inputs = _inputs((2, *size, 3))
    layer.build(inputs.shape)
    layer.bias.assign(_inputs((4,)))
    outputs = layer(inputs)
    np.testing.assert_allclose(outputs, _convolve(layer, inputs), atol=1e-12)
    assert layer.compute_output_shape(inputs.shape) == outputs.shape


def test_statistics_of_a_unit():
    """Biased: PyTorch's moving variance is larger, by n / (n - 1) of what is new."""
    unit = layers.ConvolutionUnit(4, 1, dtype="float64", momentum=0.75)
    inputs = _inputs()
    unit(inputs, training=True)
    batch = _convolve(unit.convolution, inputs)
    mean, variance = batch.mean(axis=(0, 1, 2)), batch.var(axis=(0, 1, 2))
    statistics = unit.normalization
    np.testing.assert_allclose(statistics.moving_mean, 0.25 * mean)
    np.testing.assert_allclose(statistics.moving_variance, 0.75 + 0.25 * variance)
    torch_variance = batch.var(axis=(0, 1, 2), ddof=1)
    np.testing.assert_allclose(torch_variance, variance * 120 / 119)
    expected = (batch - 0.25 * mean) / np.sqrt(0.75 + 0.25 * variance + 1e-5)
    np.testing.assert_allclose(unit(inputs), relu(expected), atol=1e-12)
