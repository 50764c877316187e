"""`MultiscaleCell` fuses its resolutions, and draws its weights by seed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import DEQ, MultiscaleCell


def _inputs(shape=(2, 8, 8, 8), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _cell(filters=(8, 16), dtype="float64", **kwargs):
    return MultiscaleCell(filters, **{"expansion": 2, "seed": 1, **kwargs}, dtype=dtype)


def _state(cell, size=8, seed=2):
    return [
        tf.constant(_inputs((2, size // 2**scale, size // 2**scale, filters), seed))
        for scale, filters in enumerate(cell.filters)
    ]


def test_inputs_of_other_channels_are_projected():
    cell = _cell()
    inputs = _inputs((2, 8, 8, 3))
    injection = cell.inject(inputs)
    kernel = cell.branches[0][0].projection.kernel.numpy()[0, 0]
    np.testing.assert_allclose(
        injection["blocks"][0][0]["inputs"], inputs @ kernel, atol=1e-12
    )


def test_fusion_alone_computes_its_kernels():
    cell = _cell()
    injection, maps = cell.inject(_inputs()), _state(cell)
    expected = cell.fusion(maps, kernels=injection["fusion"])
    for value, array in zip(cell.fusion(maps), expected, strict=True):
        np.testing.assert_array_equal(value, array)


def test_seed_makes_blocks_that_differ():
    def kernels(seed):
        cell = _cell((8, 8), seed=seed, dtype="float32")
        cell.build((None, 8, 8, 8))
        return [b[0].conv1.normalized_kernel().numpy() for b in cell.branches]

    one, again, other = kernels(1), kernels(1), kernels(2)
    np.testing.assert_array_equal(one, again)
    assert np.any(one[0] != one[1])
    assert np.any(one[0] != other[0])


def test_second_order_gradients_are_finite():
    """What a Jacobian regularizer needs, from the start that a solve has: zeros."""
    cell = _cell(dropout_rate=0.2)
    inputs = tf.constant(_inputs())
    cell.inject(inputs)
    weights = [w.value for w in cell.trainable_weights]
    with tf.GradientTape() as outer:
        injection = cell.inject(inputs, training=True)
        state = cell.initial_state(injection)
        with tf.GradientTape() as inner:
            inner.watch(state)
            values = cell(state, injection)
        probes = [_inputs(value.shape, seed=3) for value in values]
        products = inner.gradient(values, state, probes)
        loss = sum(tf.reduce_sum(product**2) for product in products)
    assert loss > 0
    gradients = [g for g in outer.gradient(loss, weights) if g is not None]
    assert len(gradients) > len(weights) / 2
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_images_that_cannot_be_halved_raise_when_symbolic():
    with pytest.raises(ValueError, match="divisible by 4"):
        DEQ(_cell((8, 8, 8)), dtype="float64")(keras.Input((8, 10, 8)))
