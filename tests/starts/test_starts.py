"""Where a solve begins: each start by itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import starts

SEED = tf.constant([1, 2])
CONFIGURED = [
    starts.CellStart(),
    starts.ZeroStart(),
    starts.NormalStart(0.5),
    starts.LearnedStart("ones"),
    starts.MixedStart(["zeros", starts.NormalStart(2.0)], [0.25, 0.75]),
]


def _state(batch=4, dtype="float32"):
    return {
        "map": tf.ones((batch, 3, 2), dtype),
        "vector": 2.0 * tf.ones((batch, 5), dtype),
    }


@pytest.mark.parametrize("start", CONFIGURED, ids=repr)
def test_round_trips(start):
    config = starts.serialize(start)
    for copy in (
        starts.deserialize(config),
        keras.saving.deserialize_keras_object(config),
        type(start).from_config(start.get_config()),
    ):
        assert type(copy) is type(start)
        assert repr(copy.get_config()) == repr(start.get_config())
    assert starts.get(start) is start


@pytest.mark.parametrize(
    "name, cls",
    [
        ("cell", starts.CellStart),
        ("zeros", starts.ZeroStart),
        ("normal", starts.NormalStart),
        ("mixed", starts.MixedStart),
        ("learned", starts.LearnedStart),
        ("zero_start", starts.ZeroStart),
        ("NormalStart", starts.NormalStart),
    ],
)
def test_names(name, cls):
    assert type(starts.get(name)) is cls


def test_a_dict_configures():
    start = starts.get(
        {
            "class_name": "mixed",
            "starts": ["cell", {"class_name": "normal", "stddev": 3.0}],
            "shares": [1.0, 0.0],
        }
    )
    assert start.starts[1].stddev == 3.0
    assert start.shares == [1.0, 0.0]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("start", CONFIGURED, ids=repr)
def test_keeps_structure_shapes_and_dtypes(start, dtype, regime):
    state = _state(dtype=dtype)
    learned = [tf.ones(2), tf.ones(5)]
    for seed in (None, SEED):
        result = regime(lambda seed=seed: start(state, seed, learned))()
        keras.tree.assert_same_structure(state, result)
        for old, new in zip(
            keras.tree.flatten(state), keras.tree.flatten(result), strict=True
        ):
            assert (old.shape, old.dtype) == (new.shape, new.dtype)


def test_deterministic_starts():
    state = _state()
    assert starts.CellStart()(state, SEED) is state
    for leaf in keras.tree.flatten(starts.ZeroStart()(state, SEED)):
        np.testing.assert_array_equal(leaf, 0.0)
    learned = [tf.constant([1.0, 2.0]), tf.range(5.0)]
    result = starts.LearnedStart()(state, SEED, learned)
    np.testing.assert_array_equal(result["map"], np.broadcast_to([1.0, 2.0], (4, 3, 2)))
    np.testing.assert_array_equal(result["vector"][3], [0, 1, 2, 3, 4])


def test_normal_start_is_drawn_for_each_entry():
    state = _state(2000)
    result = starts.NormalStart(0.5)(state, SEED)
    for leaf in keras.tree.flatten(result):
        assert abs(np.mean(leaf)) < 0.02
        assert abs(np.std(leaf) - 0.5) < 0.02
        assert len(np.unique(leaf)) > 0.99 * leaf.numpy().size


def test_draws_follow_from_the_seed_alone():
    for start in (starts.NormalStart(), starts.MixedStart()):
        one, two, other = (
            start(_state(), seed)["map"] for seed in (SEED, SEED, tf.constant([9, 9]))
        )
        np.testing.assert_array_equal(one, two)
        assert np.any(one != other)
        # A sample's draw does not depend on how many come after it.
        np.testing.assert_array_equal(start(_state(2), SEED)["map"], one[:2])


def test_shares_of_a_mixture():
    mixed = starts.MixedStart(["cell", "zeros", "normal"], [0.5, 0.2, 0.3])
    result = mixed(_state(4000), SEED)["vector"].numpy()
    is_cell = np.all(result == 2.0, axis=1)
    is_zero = np.all(result == 0.0, axis=1)
    assert abs(np.mean(is_cell) - 0.5) < 0.03
    assert abs(np.mean(is_zero) - 0.2) < 0.03
    assert abs(np.mean(~is_cell & ~is_zero) - 0.3) < 0.03
    # Each sample has all its leaves from one start.
    maps = mixed(_state(4000), SEED)["map"].numpy()
    np.testing.assert_array_equal(is_cell, np.all(maps == 1.0, axis=(1, 2)))


def test_without_a_seed_nothing_is_drawn():
    state = _state()
    assert starts.NormalStart()(state) is state
    assert starts.MixedStart(["cell", "normal"])(state) is state
    zeros = starts.MixedStart(["zeros", "normal"])(state)
    np.testing.assert_array_equal(zeros["map"], 0.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: starts.NormalStart(0.0),
        lambda: starts.NormalStart(-1.0),
        lambda: starts.NormalStart("1"),
        lambda: starts.LearnedStart(None),
        lambda: starts.MixedStart([]),
        lambda: starts.MixedStart("cell"),
        lambda: starts.MixedStart(["cell", "nowhere"]),
        lambda: starts.MixedStart(["cell", "normal"], [0.5]),
        lambda: starts.MixedStart(["cell", "normal"], [0.5, 0.6]),
        lambda: starts.MixedStart(["cell", "normal"], [1.5, -0.5]),
        lambda: starts.MixedStart(["cell", "normal"], [1, "0"]),
        lambda: starts.MixedStart(["learned", "learned"]),
        lambda: starts.get("nowhere"),
        lambda: starts.get({"class_name": "normal", "std": 1.0}),
    ],
)
def test_bad_arguments_are_refused(make):
    with pytest.raises(ValueError, match="Received: "):
        make()
