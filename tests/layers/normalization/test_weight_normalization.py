"""`WeightNormalization` computes its formula and its gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers

CASES = {
    "dense": (
        layers.WeightNormalizedDense,
        keras.layers.Dense,
        {"units": 6, "activation": "tanh"},
        (2, 7, 5),
    ),
    "conv1d_causal": (
        layers.WeightNormalizedConv1D,
        keras.layers.Conv1D,
        {"filters": 6, "kernel_size": 3, "padding": "causal", "dilation_rate": 2},
        (2, 9, 4),
    ),
    "conv2d_strided_no_bias": (
        layers.WeightNormalizedConv2D,
        keras.layers.Conv2D,
        {"filters": 6, "kernel_size": 3, "strides": 2, "use_bias": False},
        (2, 8, 8, 4),
    ),
}


@pytest.fixture(params=CASES, name="case")
def fixture_case(request):
    return CASES[request.param]


def _build(case, dtype="float64", **kwargs):
    cls, _, arguments, shape = case
    layer = cls(
        **{"bias_initializer": "random_normal", **arguments, **kwargs}, dtype=dtype
    )
    layer.build(shape)
    return layer


def _inputs(shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _plain(case, kernel, bias):
    _, cls, arguments, shape = case
    plain = cls(**arguments, dtype="float64")
    plain.build(shape)
    plain.set_weights([kernel] if bias is None else [kernel, bias])
    return plain


def _bias(layer):
    return layer.bias.numpy() if layer.use_bias else None


def test_formula(case):
    layer = _build(case)
    np.testing.assert_allclose(layer.kernel, layer.direction, atol=1e-14)
    v = _inputs(layer.direction.shape, seed=1)
    g = _inputs(layer.gain.shape, seed=2)
    layer.direction.assign(v)
    layer.gain.assign(g)
    axes = tuple(range(v.ndim - 1))
    kernel = v * g / np.sqrt(np.sum(v**2, axis=axes))
    np.testing.assert_allclose(layer.normalized_kernel(), kernel, atol=1e-14)
    np.testing.assert_allclose(layer.kernel, kernel, atol=1e-14)
    inputs = _inputs(case[3])
    plain = _plain(case, kernel, _bias(layer))
    np.testing.assert_allclose(layer(inputs), plain(inputs), atol=1e-13)
    assert len(layer.trainable_weights) == 2 + layer.use_bias


def test_gradients_through_a_given_kernel(case):
    """The chain rule by hand: dL/dg = sum(dL/dw * v) / ||v||, and dL/dv is the part
    of g / ||v|| * dL/dw that is orthogonal to v (Salimans and Kingma, eq. 3)."""
    layer = _build(case)
    layer.gain.assign(_inputs(layer.gain.shape, seed=2))
    inputs = tf.constant(_inputs(case[3]))
    with tf.GradientTape(persistent=True) as tape:
        kernel = layer.normalized_kernel()
        loss = tf.reduce_sum(tf.square(layer(inputs, kernel=kernel)))
    grad_kernel = tape.gradient(loss, kernel).numpy()
    grad_v = tape.gradient(loss, layer.direction.value)
    grad_g = tape.gradient(loss, layer.gain.value)
    v, g = layer.direction.numpy(), layer.gain.numpy()
    axes = tuple(range(v.ndim - 1))
    norm = np.sqrt(np.sum(v**2, axis=axes))
    expected_g = np.sum(grad_kernel * v, axis=axes) / norm
    expected_v = g / norm * grad_kernel - g * expected_g / norm**2 * v
    np.testing.assert_allclose(grad_g, expected_g, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(grad_v, expected_v, rtol=1e-10, atol=1e-10)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(inputs)))
    np.testing.assert_allclose(
        tape.gradient(loss, layer.direction.value), grad_v, rtol=1e-12, atol=1e-12
    )


def test_zero_direction_is_a_zero_unit_without_gradient():
    layer = layers.WeightNormalizedDense(3, use_bias=False)
    layer.build((None, 4))
    v = np.ones((4, 3), "float32")
    v[:, 1] = 0
    layer.direction.assign(v)
    with tf.GradientTape() as tape:
        kernel = layer.normalized_kernel()
        loss = tf.reduce_sum(kernel**2)
    np.testing.assert_array_equal(kernel[:, 1], np.zeros(4))
    grads = tape.gradient(loss, [layer.direction.value, layer.gain.value])
    assert all(np.isfinite(grad).all() for grad in grads)
    np.testing.assert_array_equal(grads[0][:, 1], np.zeros(4))


def test_norm_is_not_taken_in_half_precision():
    layer = layers.WeightNormalizedDense(2, use_bias=False, dtype="mixed_float16")
    layer.build((None, 8))
    layer.direction.assign(np.full((8, 2), 1e3, "float32"))  # the norm of 2828
    layer.gain.assign([1.0, 2.0])  # is fine in float16, its square is not
    np.testing.assert_allclose(
        layer.normalized_kernel()[0], np.array([1, 2]) / np.sqrt(8), rtol=1e-3
    )


def test_unsupported_uses_raise():
    layer = layers.WeightNormalizedDense(3)
    with pytest.raises(ValueError, match="before it is built"):
        layer.normalized_kernel()
    layer.build((None, 4))
    with pytest.raises(NotImplementedError):
        layer.enable_lora(2)
    with pytest.raises(NotImplementedError):
        layer.quantize("int8")
    with pytest.raises(NotImplementedError):
        layers.WeightNormalizedDense(3, dtype="int8_from_float32").build((None, 4))
