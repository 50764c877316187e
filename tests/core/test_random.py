"""Random numbers do not depend on whether XLA compiles the function that draws them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras.core import random

SEEDS = [(0, 0), (3, 7), (-412061107, 1), (5, -2), (-1, -(2**31))]
DRAWS = {
    "fold_in": lambda seed: random.fold_in(seed, -3),
    "split": lambda seed: random.split(seed, 3)[2],
    "uniform": lambda seed: random.uniform((50, 41), seed),
    "uniform scalar": lambda seed: random.uniform((), seed),
    "integer": lambda seed: random.integer(seed, 2, 61),
    "normal": lambda seed: random.normal([3, 5, 7], seed),
    "normal scalar": lambda seed: random.normal((), seed),
    "nested": lambda seed: random.normal_like(
        tf.zeros((4, 4)), random.fold_in(seed, 1)
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_xla_draws_the_same(draw):
    @tf.function(jit_compile=True)
    def compiled(seed):
        return draw(seed)

    for seed in SEEDS:
        seed = tf.constant(seed)
        np.testing.assert_allclose(compiled(seed), draw(seed), rtol=0, atol=2e-6)


def test_split_equals_fold_in():
    seeds = random.split(tf.constant(SEEDS[2]), 3)
    expected = [tf.random.fold_in(SEEDS[2], i) for i in range(3)]
    np.testing.assert_array_equal(seeds, expected)
    assert random.split(None, 2) == [None, None]


def test_seeds_are_those_of_keras():
    ours, theirs = keras.random.SeedGenerator(2**31), keras.random.SeedGenerator(2**31)
    for _ in range(2):
        np.testing.assert_array_equal(
            random.uniform((5,), random.next_seed(ours)),
            keras.random.uniform((5,), seed=theirs),
        )
