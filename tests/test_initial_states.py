"""Every initial state by itself."""

import keras
import numpy as np
import tensorflow as tf

from deq_keras import initial_states
from tests.regimes import XLA_IS_SLOW

SEED = tf.constant([1, 2])


def _state(batch=4, dtype="float32"):
    return {
        "map": tf.ones((batch, 3, 2), dtype),
        "vector": 2.0 * tf.ones((batch, 5), dtype),
    }


def test_moments_of_normal():
    state = _state(2000, "float64")
    result = initial_states.Normal(0.5)(state, SEED)
    for leaf in keras.tree.flatten(result):
        assert leaf.dtype == "float64"
        assert abs(np.mean(leaf)) < 0.02
        assert abs(np.std(leaf) - 0.5) < 0.02
        assert len(np.unique(leaf)) > 0.99 * leaf.numpy().size


def test_draws_depend_only_on_the_seed():
    for initial_state in (initial_states.Normal(), initial_states.Mixed()):
        one, two, other = (
            initial_state(_state(), seed)["map"]
            for seed in (SEED, SEED, tf.constant([9, 9]))
        )
        np.testing.assert_array_equal(one, two)
        assert np.any(one != other)
        # A sample's draw does not depend on how many come after it.
        np.testing.assert_array_equal(initial_state(_state(2), SEED)["map"], one[:2])


@XLA_IS_SLOW
def test_fractions_of_a_mixture(regime):
    mixed = initial_states.Mixed(["cell", "zeros", "normal"], [0.5, 0.2, 0.3])
    result = regime(lambda: mixed(_state(4000, "bfloat16"), SEED))()
    result = tf.nest.map_structure(np.asarray, result)
    maps, result = result["map"], result["vector"]
    assert result.dtype == "bfloat16"
    is_cell = np.all(result == 2.0, axis=1)
    is_zero = np.all(result == 0.0, axis=1)
    assert abs(np.mean(is_cell) - 0.5) < 0.03
    assert abs(np.mean(is_zero) - 0.2) < 0.03
    assert abs(np.mean(~is_cell & ~is_zero) - 0.3) < 0.03
    # Each sample has all its leaves from one initial state.
    np.testing.assert_array_equal(is_cell, np.all(maps == 1.0, axis=(1, 2)))


def test_random_part_of_a_mixture_keeps_the_ratios():
    narrow, wide = initial_states.Normal(0.1), initial_states.Normal(10.0)
    mixed = initial_states.Mixed(["cell", narrow, wide], [0.5, 0.4, 0.1])
    drawn = mixed.random_part(_state(4000), SEED)
    is_wide = np.max(np.abs(drawn["map"]), axis=(1, 2)) > 1.0
    assert abs(np.mean(is_wide) - 0.2) < 0.03


def test_nothing_is_drawn_without_a_seed():
    state = _state()
    assert initial_states.Normal()(state) is state
    assert initial_states.Mixed(["cell", "normal"])(state) is state
    zeros = initial_states.Mixed(["zeros", "normal"])(state)
    np.testing.assert_array_equal(zeros["map"], 0.0)
