"""Group and layer normalization against Keras and against formulas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras.layers import GroupNormalization, LayerNormalization
from tests import harness
from tests.layers.formulas import group_norm


def _inputs(shape, mean=0.0, std=1.0, seed=0):
    return mean + std * np.random.default_rng(seed).normal(size=shape)


def _pair(shape, groups=None, **kwargs):
    """This layer and Keras' with the same random weights."""
    name = "GroupNormalization" if groups else "LayerNormalization"
    arguments = {"epsilon": 1e-5, "dtype": "float64", **kwargs}
    if groups:
        arguments["groups"] = groups
    pair = [
        getattr(library.layers, name)(**arguments) for library in (deq_keras, keras)
    ]
    for layer in pair:
        layer.build(shape)
        layer.set_weights(
            [_inputs(w.shape, 0.5, seed=i) for i, w in enumerate(layer.weights)]
        )
    return pair


@pytest.mark.parametrize(
    "shape, groups, arguments",
    [
        ((3, 5, 4, 8), 1, {}),
        ((3, 7, 8), 4, {"center": False}),
        ((3, 8), 8, {"scale": False}),
        ((2, 3, 4, 5, 8), 4, {"center": False, "scale": False}),
        ((3, 8), None, {}),
        ((3, 5, 8), None, {"center": False}),
        ((2, 3, 4, 8), None, {"scale": False}),
    ],
)
def test_outputs_and_gradients_equal_those_of_keras(shape, groups, arguments):
    pair = _pair(shape, groups, **arguments)
    inputs = tf.constant(_inputs(shape, mean=2, std=3))
    cotangent, results = _inputs(shape, seed=1), []
    for layer in pair:
        sources = [inputs, *layer.weights]
        slopes = harness.gradients(lambda: layer(inputs), sources, cotangent)
        results.append([layer(inputs), *slopes])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-12)


@pytest.mark.parametrize(
    "mean, std, tolerance",
    # The mean itself is known to float32 only: a unit in the last place of 100 is
    # 8e-6. On a CPU, Keras' layer is up to 2.3e-5 off in the first case, ours 1.5e-5;
    # a GPU adds in another order.
    [(100, 1, 5e-5), (-1e4, 1e2, 5e-5), (-5, 0.01, 2e-4)],
)
def test_large_mean(mean, std, tolerance, regime):
    inputs = _inputs((4, 16, 16, 32), mean, std).astype("float32")
    outputs = regime(GroupNormalization(8))(inputs)
    np.testing.assert_allclose(outputs, group_norm(inputs, 8), atol=tolerance)


def test_constant_map_gives_beta(regime):
    layer, _ = _pair((2, 4, 4, 8), 4, dtype="float32")
    outputs = regime(layer)(np.full((2, 4, 4, 8), 1e4, "float32"))
    expected = np.broadcast_to(layer.beta.numpy(), outputs.shape)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_sums_of_a_constant_map_may_round_below_its_square():
    layer, _ = _pair((2, 4, 4, 8), 4, dtype="float32")
    constants = _inputs((64, 1, 1, 1), std=1e6).astype("float32")
    maps = np.tile(constants, (1, 3, 5, 8))
    outputs = tf.function(layer, jit_compile=True)(maps)
    expected = np.broadcast_to(layer.beta.numpy(), outputs.shape)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_dynamic_batch_and_size():
    layer = GroupNormalization(2, dtype="float64")
    spec = tf.TensorSpec((None, None, None, 4), "float64")
    function = tf.function(layer, input_signature=[spec])
    for shape in ((2, 3, 5, 4), (4, 6, 2, 4)):
        inputs = _inputs(shape)
        np.testing.assert_allclose(function(inputs), group_norm(inputs, 2), atol=1e-12)


def _squared_vjp(function, inputs, cotangent):
    """The function that a Jacobian regularizer differentiates: |v^T J|^2."""
    product = harness.gradients(lambda: function(inputs), inputs, cotangent)
    return tf.reduce_sum(product**2)


def _plain(inputs, gamma, beta, groups):
    """The formula in plain TensorFlow, differentiated automatically."""
    channels = inputs.shape[-1]
    grouped = tf.reshape(inputs, (inputs.shape[0], -1, groups, channels // groups))
    mean = tf.reduce_mean(grouped, axis=(1, 3), keepdims=True)
    variance = tf.reduce_mean((grouped - mean) ** 2, axis=(1, 3), keepdims=True)
    normalized = (grouped - mean) * tf.math.rsqrt(variance + 1e-5)
    return tf.reshape(normalized, inputs.shape) * gamma + beta


@pytest.mark.parametrize(
    "groups, regime", [(1, "eager"), (4, "graph"), (1, "xla")], indirect=["regime"]
)
def test_second_order_gradients(groups, regime):
    shape = (2, 3, 4, 8)
    layer, _ = _pair(shape, groups)
    inputs, cotangent = tf.constant(_inputs(shape)), tf.constant(_inputs(shape, seed=1))

    def differentiate(function):
        # Behind another function, so that the inputs are not a leaf either.
        return harness.gradients(
            lambda: _squared_vjp(lambda x: function(tf.sin(x)), inputs, cotangent),
            [inputs, layer.gamma],
        )

    def expected(inputs):
        gamma = tf.convert_to_tensor(layer.gamma.value)
        return _plain(inputs, gamma, layer.beta.value, groups)

    actual = regime(lambda: differentiate(layer))()
    for ours, reference in zip(actual, differentiate(expected), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-9, atol=1e-10)


def test_no_overflow_in_float16():
    layer = GroupNormalization(4, dtype="mixed_float16")
    inputs = tf.cast(_inputs((2, 32, 32, 8), mean=3e4, std=1e3), "float16")
    expected = group_norm(inputs, 4)
    np.testing.assert_allclose(tf.cast(layer(inputs), "float64"), expected, atol=5e-3)


def test_large_mean_of_a_layer():
    inputs = _inputs((64, 32), mean=-1e4, std=1e2).astype("float32")
    centered = inputs.astype("float64") - inputs.mean(-1, "float64", keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(LayerNormalization()(inputs), expected, atol=5e-5)


def test_second_order_gradients_of_layer_normalization():
    layer, reference = _pair((1, 6))
    point, direction = (tf.constant(_inputs((1, 6), seed=i)) for i in range(2))
    # Alone, a norm is blind to the mean; inside a function it is not.
    kernel = _inputs((6, 6), seed=2)

    def squared_product(layer, point):
        return _squared_vjp(lambda x: layer(x @ kernel), point, direction)

    def slope(layer):
        found = harness.gradients(lambda: squared_product(layer, point), point)
        return found.numpy()[0]

    def difference(index):
        step = 1e-5 * tf.one_hot([index], 6, dtype="float64")
        up, down = (squared_product(layer, point + s) for s in (step, -step))
        return float(up - down) / 2e-5

    expected = [difference(index) for index in range(6)]
    np.testing.assert_allclose(slope(layer), expected, rtol=1e-6, atol=1e-8)
    # Why this layer exists. If Keras has mended its own, delete ours.
    assert np.abs(slope(reference) - expected).max() > 1e-3
