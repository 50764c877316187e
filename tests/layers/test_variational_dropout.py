"""`VariationalDropout` draws exact masks that repeat with their seed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import VariationalDropout


def test_mask_is_inverted_dropout():
    rate = 0.3
    mask = VariationalDropout(rate, seed=1).sample_mask((400, 500), training=True)
    mask = keras.ops.convert_to_numpy(mask)
    np.testing.assert_allclose(np.unique(mask), [0, 1 / (1 - rate)], rtol=1e-6)
    # Five standard errors of the mean of 200 000 Bernoulli variables.
    error = 5 * np.sqrt(rate * (1 - rate) / mask.size)
    assert abs(np.mean(mask == 0) - rate) < error


def test_rate_is_exact_in_bfloat16():
    # Drawn in bfloat16, a rate of 0.05 would act as 7/128 = 0.0547.
    dropout = VariationalDropout(0.05, seed=1, dtype="mixed_bfloat16")
    mask = dropout.sample_mask((1000, 1000), training=True)
    assert mask.dtype == "bfloat16"
    dropped = float(keras.ops.mean(keras.ops.cast(mask == 0, "float32")))
    assert abs(dropped - 0.05) < 5 * np.sqrt(0.05 * 0.95 / 1e6)


@pytest.mark.parametrize("rate, training", [(0.5, False), (0.0, True)])
def test_mask_of_no_dropout_is_static_ones(rate, training):
    dropout = VariationalDropout(rate, noise_shape=(None, 1, 1, None))

    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 3))])
    def sample(inputs):
        mask = dropout.sample_mask(inputs, training=training)
        assert mask.shape == (1, 1, 1, 1)
        return mask

    np.testing.assert_array_equal(sample(tf.zeros((2, 4, 4, 3))), [[[[1]]]])


def test_masks_differ_between_draws_and_repeat_with_the_seed():
    first, second = (VariationalDropout(0.5, seed=7) for _ in range(2))
    masks = [first.sample_mask((64,), training=True).numpy() for _ in range(2)]
    again = [second.sample_mask((64,), training=True).numpy() for _ in range(2)]
    assert (masks[0] != masks[1]).any()
    np.testing.assert_array_equal(masks, again)


def test_mask_in_graph_with_dynamic_batch():
    dropout = VariationalDropout(0.5, noise_shape=(None, 1, None), seed=1)

    @tf.function(input_signature=[tf.TensorSpec((None, 5, 16))], jit_compile=True)
    def sample(inputs):
        return dropout.sample_mask(inputs, training=True)

    first, second = sample(tf.zeros((8, 5, 16))), sample(tf.zeros((8, 5, 16)))
    assert first.shape == (8, 1, 16)
    assert np.any(first != second)


def test_call_multiplies_with_a_mask_in_training_only():
    inputs = keras.random.normal((6, 4, 4, 32), seed=2)
    dropout = VariationalDropout(0.5, noise_shape=(None, 1, 1, None), seed=1)
    np.testing.assert_array_equal(dropout(inputs), inputs)
    ratio = keras.ops.convert_to_numpy(dropout(inputs, training=True) / inputs)
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1, :1], ratio.shape))
    assert set(np.unique(ratio.round(4))) == {0, 2}
