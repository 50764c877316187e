import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import LayerNormalization


def _inputs(shape=(4, 5, 8), mean=0.0, std=1.0, seed=0):
    return mean + std * np.random.default_rng(seed).normal(size=shape)


def _pair(shape, **kwargs):
    """This layer and Keras' with the same random weights."""
    arguments = {"epsilon": 1e-5, "dtype": "float64", **kwargs}
    layers = (
        LayerNormalization(**arguments),
        keras.layers.LayerNormalization(**arguments),
    )
    for layer in layers:
        layer.build(shape)
        layer.set_weights(
            [_inputs(w.shape, 0.5, seed=i) for i, w in enumerate(layer.weights)]
        )
    return layers


@pytest.mark.parametrize(
    "shape, center, scale",
    [((3, 8), True, True), ((3, 5, 8), False, True), ((2, 3, 4, 8), True, False)],
)
def test_matches_keras(shape, center, scale):
    layer, reference = _pair(shape, center=center, scale=scale)
    assert len(layer.weights) == center + scale
    inputs = _inputs(shape, mean=2, std=3)
    np.testing.assert_allclose(layer(inputs), reference(inputs), atol=1e-12)


def test_large_mean():
    inputs = _inputs((64, 32), mean=-1e4, std=1e2).astype("float32")
    centered = inputs.astype("float64") - inputs.mean(-1, "float64", keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(LayerNormalization()(inputs), expected, atol=5e-5)


def test_second_order_gradients_are_exact():
    layer, reference = _pair((1, 6))
    point, direction = (tf.constant(_inputs((1, 6), seed=i)) for i in range(2))
    # Alone, a norm is blind to the mean; inside a function it is not.
    kernel = _inputs((6, 6), seed=2)

    def squared_product(layer, point):
        with tf.GradientTape() as tape:
            tape.watch(point)
            value = layer(point @ kernel)
        return tf.reduce_sum(tape.gradient(value, point, direction) ** 2)

    def slope(layer):
        with tf.GradientTape() as tape:
            tape.watch(point)
            value = squared_product(layer, point)
        return tape.gradient(value, point).numpy()[0]

    def difference(index):
        step = 1e-5 * tf.one_hot([index], 6, dtype="float64")
        up, down = (squared_product(layer, point + s) for s in (step, -step))
        return float(up - down) / 2e-5

    expected = [difference(index) for index in range(6)]
    np.testing.assert_allclose(slope(layer), expected, rtol=1e-6, atol=1e-8)
    # Why this layer exists. If Keras has mended its own, delete ours.
    assert np.abs(slope(reference) - expected).max() > 1e-3
