import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import GroupNormalization
from tests.layers.formulas import group_norm


def _inputs(shape, mean=0.0, std=1.0, seed=0):
    return mean + std * np.random.default_rng(seed).normal(size=shape)


def _pair(shape, groups, dtype, **kwargs):
    """This layer and Keras' with the same random weights."""
    arguments = {"epsilon": 1e-5, "dtype": dtype, **kwargs}
    layers = (
        GroupNormalization(groups, **arguments),
        keras.layers.GroupNormalization(groups, **arguments),
    )
    for layer in layers:
        layer.build(shape)
        layer.set_weights(
            [_inputs(w.shape, 0.5, seed=i) for i, w in enumerate(layer.weights)]
        )
    return layers


@pytest.mark.parametrize("shape", [(3, 5, 4, 8), (3, 7, 8), (3, 8), (2, 3, 4, 5, 8)])
@pytest.mark.parametrize("groups", [1, 4, 8])
def testgroup_norm(shape, groups):
    layer, _ = _pair(shape, groups, "float64")
    inputs = _inputs(shape, mean=2, std=3)
    expected = group_norm(inputs, groups, layer.gamma.numpy(), layer.beta.numpy())
    np.testing.assert_allclose(layer(inputs), expected, atol=1e-12)


@pytest.mark.parametrize("mean, std", [(0, 1), (3, 2), (-100, 100)])
@pytest.mark.parametrize(
    "dtype, rounding", [("float32", 1e-5), ("mixed_bfloat16", 2**-7)]
)
def test_matches_keras(mean, std, dtype, rounding):
    shape = (4, 16, 16, 32)
    layer, reference = _pair(shape, 8, dtype)
    inputs = tf.cast(_inputs(shape, mean, std), layer.compute_dtype)
    outputs, expected = layer(inputs), reference(inputs)
    assert outputs.dtype == expected.dtype
    outputs, expected = tf.cast(outputs, "float32"), tf.cast(expected, "float32")
    np.testing.assert_allclose(outputs, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(
    "mean, std, tolerance",
    # The mean itself is known to float32 only: a unit in the last place of 100 is
    # 8e-6. Keras' layer is up to 2.3e-5 off in the first case.
    [(100, 1, 1.5e-5), (-1e4, 1e2, 1.5e-5), (-5, 0.01, 1e-4)],
)
def test_large_mean(mean, std, tolerance):
    shape = (4, 16, 16, 32)
    inputs = _inputs(shape, mean, std).astype("float32")
    layer, reference = _pair(shape, 8, "float32", center=False, scale=False)
    outputs = layer(inputs)
    np.testing.assert_allclose(outputs, reference(inputs), atol=10 * tolerance)
    np.testing.assert_allclose(outputs, group_norm(inputs, 8, 1, 0), atol=tolerance)


def test_constant_map_gives_beta():
    layer, _ = _pair((2, 4, 4, 8), 4, "float32")
    outputs = layer(np.full((2, 4, 4, 8), 1e4, "float32"))
    expected = np.broadcast_to(layer.beta.numpy(), outputs.shape)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_weights(center, scale):
    layer, reference = _pair((2, 5, 8), 2, "float64", center=center, scale=scale)
    assert len(layer.weights) == center + scale
    inputs = _inputs((2, 5, 8))
    np.testing.assert_allclose(layer(inputs), reference(inputs), atol=1e-12)


def test_dynamic_batch_and_size():
    layer = GroupNormalization(2, dtype="float64")
    spec = tf.TensorSpec((None, None, None, 4), "float64")
    function = tf.function(layer, input_signature=[spec])
    for shape in ((2, 3, 5, 4), (4, 6, 2, 4)):
        inputs = _inputs(shape)
        np.testing.assert_allclose(
            function(inputs), group_norm(inputs, 2, 1.0, 0.0), atol=1e-12
        )


@pytest.mark.parametrize("shape", [(3, 4, 4, 8), (3, 8)])
@pytest.mark.parametrize("groups", [1, 4])
def test_first_order_gradients_match_keras(shape, groups):
    layers = _pair(shape, groups, "float64")
    inputs, cotangent = tf.constant(_inputs(shape)), _inputs(shape, seed=1)
    gradients = []
    for layer in layers:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs)
        sources = [inputs, layer.gamma.value, layer.beta.value]
        gradients.append(tape.gradient(outputs, sources, cotangent))
    for ours, expected in zip(*gradients):
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def _squared_vjp(function, inputs, cotangent):
    """What a Jacobian regularizer differentiates: |v^T J|^2."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(inputs)
    (product,) = tape.gradient(outputs, [inputs], cotangent)
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
    layer, _ = _pair(shape, groups, "float64")
    inputs, cotangent = tf.constant(_inputs(shape)), tf.constant(_inputs(shape, seed=1))

    def differentiate(function):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            # Behind another function, so that the inputs are not a leaf either.
            value = _squared_vjp(lambda x: function(tf.sin(x)), inputs, cotangent)
        return tape.gradient(value, [inputs, layer.gamma.value])

    def expected(inputs):
        gamma = tf.convert_to_tensor(layer.gamma.value)
        return _plain(inputs, gamma, layer.beta.value, groups)

    actual = regime(lambda: differentiate(layer))()
    for ours, reference in zip(actual, differentiate(expected), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_gradients(policy):
    shape = (2, 8, 8, 16)
    layer, exact = GroupNormalization(4, dtype=policy), GroupNormalization(4)
    inputs = tf.cast(_inputs(shape), layer.compute_dtype)
    cotangent = tf.cast(_inputs(shape, seed=1), layer.compute_dtype)
    gradients = []
    for one, dtype in ((layer, layer.compute_dtype), (exact, "float32")):
        x = tf.cast(inputs, dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = one(x)
        assert outputs.dtype == dtype
        gradients.append(tape.gradient(outputs, x, tf.cast(cotangent, dtype)))
    assert gradients[0].dtype == layer.compute_dtype
    np.testing.assert_allclose(
        tf.cast(gradients[0], "float32"), gradients[1], atol=0.05
    )


def test_no_overflow_in_float16():
    layer = GroupNormalization(4, dtype="mixed_float16")
    inputs = tf.cast(_inputs((2, 32, 32, 8), mean=3e4, std=1e3), "float16")
    expected = group_norm(inputs, 4, 1.0, 0.0)
    np.testing.assert_allclose(tf.cast(layer(inputs), "float64"), expected, atol=5e-3)


def test_save_and_load(tmp_path):
    model = keras.Sequential([keras.Input((4, 4, 8)), GroupNormalization(2)])
    model.layers[0].gamma.assign(np.arange(8.0))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = _inputs((2, 4, 4, 8)).astype("float32")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


@pytest.mark.parametrize("shape", [(2, 4, 6), (2, 4, None)])
def test_channels_that_groups_do_not_divide(shape):
    with pytest.raises(ValueError, match="static number of channels"):
        GroupNormalization(4).build(shape)
