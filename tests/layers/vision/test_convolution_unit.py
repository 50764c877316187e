import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import (
    BottleneckBlock,
    ConvolutionUnit,
    MultiscaleStem,
    SymmetricConv2D,
)
from tests import harness
from tests.layers.formulas import convolve, randomize, relu


def _inputs(shape=(4, 6, 5, 3), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _convolve(layer, inputs):
    outputs = convolve(inputs, layer.kernel.numpy(), layer.strides[0])
    return outputs + layer.bias.numpy() if layer.use_bias else outputs


@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.parametrize("size", [(6, 8), (5, 7), (6, 5), (1, 2)])
@pytest.mark.parametrize("kernel_size", [1, 3, 5, (3, 5)])
def test_convolution_pads_all_sides_alike(strides, size, kernel_size):
    layer = SymmetricConv2D(4, kernel_size, strides=strides, dtype="float64")
    inputs = _inputs((2, *size, 3))
    layer.build(inputs.shape)
    layer.bias.assign(_inputs((4,)))
    outputs = layer(inputs)
    np.testing.assert_allclose(outputs, _convolve(layer, inputs), atol=1e-12)
    assert layer.compute_output_shape(inputs.shape) == outputs.shape


def test_keras_own_padding_is_another_at_stride_2():
    """The trap that this layer is for."""
    layer = SymmetricConv2D(4, 3, strides=2, dtype="float64")
    plain = keras.layers.Conv2D(4, 3, strides=2, padding="same", dtype="float64")
    for size, is_same in ((6, False), (7, True)):
        inputs = _inputs((2, size, size, 3))
        plain(inputs)
        outputs = layer(inputs)
        plain.set_weights(layer.get_weights())
        assert np.allclose(plain(inputs), outputs) == is_same


def test_convolution_of_unknown_sizes():
    layer = SymmetricConv2D(4, 3, strides=2)
    symbolic = layer(keras.Input((None, None, 3)))
    assert symbolic.shape == (None, None, None, 4)
    harness.check_round_trip(layer)


def _normalize(normalization, outputs):
    """By the batch."""
    mean, variance = outputs.mean(axis=(0, 1, 2)), outputs.var(axis=(0, 1, 2))
    outputs = (outputs - mean) / np.sqrt(variance + 1e-5)
    if not normalization.scale:
        return outputs
    return outputs * normalization.gamma.numpy() + normalization.beta.numpy()


def _unit(unit, inputs):
    outputs = _normalize(unit.normalization, _convolve(unit.convolution, inputs))
    return relu(outputs) if unit.relu else outputs


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_unit(use_bias, affine, relu):
    unit = ConvolutionUnit(
        4, 3, strides=2, use_bias=use_bias, affine=affine, relu=relu, dtype="float64"
    )
    inputs = _inputs()
    unit.build(inputs.shape)
    randomize(unit, shift=0.3)
    outputs = unit(inputs, training=True)
    np.testing.assert_allclose(outputs, _unit(unit, inputs), atol=1e-10)
    assert len(unit.trainable_weights) == 1 + use_bias + 2 * affine


def test_statistics_of_a_unit():
    """Biased: PyTorch's moving variance is larger, by n / (n - 1) of what is new."""
    unit = ConvolutionUnit(4, 1, dtype="float64", momentum=0.75)
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


@pytest.mark.parametrize("channels", [3, 16])
def test_bottleneck_block(channels):
    block = BottleneckBlock(4, dtype="float64")
    inputs = _inputs((2, 6, 5, channels))
    block.build(inputs.shape)
    randomize(block, shift=0.3)
    assert (block.shortcut is None) == (channels == 16)
    outputs = inputs
    for unit in block.units:
        outputs = _unit(unit, outputs)
    shortcut = inputs if block.shortcut is None else _unit(block.shortcut, inputs)
    expected = relu(outputs + shortcut)
    np.testing.assert_allclose(block(inputs, training=True), expected, atol=1e-10)
    affine = [unit.affine for unit in block.units]
    assert affine == [False, False, False]


@pytest.mark.parametrize(
    "num_downsamplings, injection_unit, strides",
    [
        (0, False, [1, 1]),
        (0, True, [1, 1, 1]),
        (1, True, [2, 1, 1]),
        (2, True, [2, 2, 1]),
        (3, False, [2, 2, 2]),
    ],
)
def test_stem(num_downsamplings, injection_unit, strides):
    stem = MultiscaleStem(4, num_downsamplings, injection_unit, dtype="float64")
    inputs = _inputs((2, 16, 8, 3))
    stem.build(inputs.shape)
    randomize(stem, shift=0.3)
    assert [unit.strides for unit in stem.units] == strides
    sizes = [unit.kernel_size for unit in stem.units]
    assert sizes == [3] * (len(strides) - injection_unit) + [1] * injection_unit
    expected = inputs
    for unit in stem.units:
        expected = _unit(unit, expected)
    np.testing.assert_allclose(stem(inputs, training=True), expected, atol=1e-9)
    assert stem.compute_output_shape(inputs.shape) == expected.shape


@pytest.mark.parametrize("make", [lambda **k: MultiscaleStem(4, 1, **k)])
def test_stem_is_a_keras_layer(make, tmp_path):
    inputs = _inputs((6, 8, 8, 3)).astype("float32")
    harness.check_symbolic_call(make, inputs)
    harness.check_regimes(make, inputs)
    harness.check_fit(make, inputs)
    harness.check_save(make, inputs, tmp_path)
    half = make(dtype="mixed_bfloat16")
    assert half(inputs, training=True).dtype == "bfloat16"
    assert {weight.dtype for weight in half.weights} == {"float32"}
    moments = half.units[0].normalization.moving_variance
    assert tf.reduce_all(tf.math.is_finite(moments))
