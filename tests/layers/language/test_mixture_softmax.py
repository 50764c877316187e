"""`MixtureSoftmax` is the mixture that it documents."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import AdaptiveEmbedding, MixtureSoftmax
from tests import harness


def _layer(dtype=None, **kwargs):
    return MixtureSoftmax(
        AdaptiveEmbedding(20, 6, dtype=dtype),
        3,
        tie_weights=False,
        dtype=dtype,
        **kwargs,
    )


def _hidden(shape=(6, 5, 8)):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_is_the_mixture_that_it_says():
    layer, hidden = _layer("float64"), _hidden()
    found = layer(hidden)
    prior = tf.nn.softmax(layer.prior(hidden))
    latent = tf.tanh(tf.reshape(layer.latent(hidden), (6, 5, 3, 6)))
    expected = sum(
        prior[..., n : n + 1]
        * tf.nn.softmax(
            tf.linalg.matmul(latent[:, :, n], layer.table, transpose_b=True)
        )
        for n in range(3)
    )
    np.testing.assert_allclose(found, tf.math.log(expected + 1e-8), atol=1e-10)
    targets = np.random.default_rng(1).integers(0, 20, (6, 5))
    losses = -tf.gather(found, targets, batch_dims=2)
    np.testing.assert_allclose(layer(hidden, targets), losses, atol=1e-12)


def test_no_probability_is_zero():
    layer = _layer()
    layer.build((None, None, 8))
    layer.bias.assign(tf.one_hot(3, 20) * 1e4)
    assert np.isfinite(layer(_hidden(), np.zeros((6, 5), "int32"))).all()


@pytest.mark.slow
def test_is_a_keras_layer(tmp_path):
    harness.check_round_trip(_layer(dropout_rate=0.5, seed=1))
    harness.check_regimes(_layer, _hidden())
    harness.check_fit(_layer, _hidden())
    harness.check_save(_layer, _hidden(), tmp_path)
