"""Relative attention equals its definition up to second derivatives."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers.language.attend import attend

BATCH, HEADS, LENGTH, KEYS, HEAD_DIM = 2, 3, 4, 6, 5


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def arrays():
    return [
        normal(BATCH, HEADS, LENGTH, HEAD_DIM, seed=1),
        normal(BATCH, HEADS, LENGTH, HEAD_DIM, seed=2),
        normal(BATCH, HEADS, KEYS, HEAD_DIM, seed=3),
        normal(HEADS, HEAD_DIM, KEYS + 1, seed=4),
        normal(BATCH, HEADS, KEYS, HEAD_DIM, seed=5),
    ]


def distances():
    return np.arange(LENGTH)[:, None] + KEYS - LENGTH - np.arange(KEYS)  # (L, K)


def mask():
    return tf.constant(np.where(distances() >= 0, 0.0, -3e4)[None, None])


def by_definition(content_queries, position_queries, keys, positions, values, dropout):
    """What `attend` computes, left to TensorFlow to differentiate."""
    columns = np.clip(KEYS - distances(), 0, KEYS)
    by_key = tf.gather(positions, columns, axis=2)  # (H, head_dim, L, K)
    scores = tf.einsum("bhld,bhkd->bhlk", content_queries, keys) + mask()
    scores += tf.einsum("bhld,hdlk->bhlk", position_queries, by_key)
    weights = tf.nn.softmax(scores)
    if dropout is not None:
        weights *= dropout
    return tf.einsum("bhlk,bhkd->bhld", weights, values)


def of_the_library(*arguments):
    *arguments, dropout = arguments
    return attend(*arguments, mask(), dropout)


def derivatives(function, dropout):
    """Returns the result, its vector-Jacobian products, and the gradients of a function
    of all of these with respect to the inputs and the vector."""
    arguments = arrays()
    vector = normal(BATCH, HEADS, LENGTH, HEAD_DIM, seed=6)
    with tf.GradientTape() as outer:
        outer.watch([*arguments, vector])
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            mixed = function(*arguments, dropout)
        products = inner.gradient(mixed, arguments, output_gradients=vector)
        total = tf.reduce_sum(mixed**3)
        total += sum(tf.reduce_sum(tf.sin(product)) for product in products)
    return [mixed, *products, *outer.gradient(total, [*arguments, vector])]


@pytest.mark.parametrize(
    "regime, rate", [("eager", 0.0), ("graph", 0.5), ("xla", 0.5)], indirect=["regime"]
)
def test_equals_its_definition_up_to_second_derivatives(regime, rate):
    dropout = None
    if rate:
        kept = normal(BATCH, HEADS, LENGTH, KEYS, seed=7) > 0
        dropout = tf.cast(kept, tf.float64) / (1 - rate)
    actual = regime(lambda: derivatives(of_the_library, dropout))()
    expected = derivatives(by_definition, dropout)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
