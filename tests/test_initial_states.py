"""Every initial state by itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import initial_states
from tests.regimes import XLA_IS_SLOW

SEED = tf.constant([1, 2])
CONFIGURED = [
    initial_states.FromCell(),
    initial_states.Zeros(),
    initial_states.Normal(0.5),
    initial_states.Mixed(["zeros", initial_states.Normal(2.0)], [0.25, 0.75]),
]


def _state(batch=4, dtype="float32"):
    return {
        "map": tf.ones((batch, 3, 2), dtype),
        "vector": 2.0 * tf.ones((batch, 5), dtype),
    }


@XLA_IS_SLOW
@pytest.mark.parametrize("initial_state", CONFIGURED, ids=repr)
def test_keeps_structure_shapes_and_dtypes(initial_state, regime):
    for dtype, seed in (("float64", SEED), ("bfloat16", SEED), ("float32", None)):
        state = _state(dtype=dtype)
        result = regime(lambda s=state, k=seed: initial_state(s, k))()
        keras.tree.assert_same_structure(state, result)
        for old, new in zip(
            keras.tree.flatten(state), keras.tree.flatten(result), strict=True
        ):
            assert (old.shape, old.dtype) == (new.shape, new.dtype)


def test_moments_of_normal():
    state = _state(2000)
    result = initial_states.Normal(0.5)(state, SEED)
    for leaf in keras.tree.flatten(result):
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


def test_fractions_of_a_mixture():
    mixed = initial_states.Mixed(["cell", "zeros", "normal"], [0.5, 0.2, 0.3])
    result = mixed(_state(4000), SEED)["vector"].numpy()
    is_cell = np.all(result == 2.0, axis=1)
    is_zero = np.all(result == 0.0, axis=1)
    assert abs(np.mean(is_cell) - 0.5) < 0.03
    assert abs(np.mean(is_zero) - 0.2) < 0.03
    assert abs(np.mean(~is_cell & ~is_zero) - 0.3) < 0.03
    # Each sample has all its leaves from one initial state.
    maps = mixed(_state(4000), SEED)["map"].numpy()
    np.testing.assert_array_equal(is_cell, np.all(maps == 1.0, axis=(1, 2)))


def test_nothing_is_drawn_without_a_seed():
    state = _state()
    assert initial_states.Normal()(state) is state
    assert initial_states.Mixed(["cell", "normal"])(state) is state
    zeros = initial_states.Mixed(["zeros", "normal"])(state)
    np.testing.assert_array_equal(zeros["map"], 0.0)
