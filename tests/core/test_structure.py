"""The nest of tensors as one matrix, and back."""

import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from deq_keras.core.structure import StateStructure, where_rows


def _state(dtype="float32"):
    values = tf.reshape(tf.range(24, dtype="float32"), (2, 12))
    return {
        "b": tf.cast(tf.reshape(values[:, :6], (2, 2, 3)), dtype),
        "a": (tf.cast(values[:, 6:7], dtype), tf.cast(values[:, 7:], dtype)),
    }


def test_round_trip():
    state = _state()
    structure = StateStructure(state)
    matrix = structure.to_matrix(state)
    assert matrix.shape == (2, 12)
    assert matrix.dtype == "float32"
    back = structure.to_state(matrix)
    tree.assert_same_structure(back, state)
    tree.map_structure(np.testing.assert_array_equal, back, state)


def test_a_row_is_a_sample():
    state = _state()
    matrix = StateStructure(state).to_matrix(state)
    np.testing.assert_array_equal(np.sort(matrix[0]), np.arange(12))
    np.testing.assert_array_equal(np.sort(matrix[1]), np.arange(12, 24))


@pytest.mark.parametrize(
    "dtype, expected",
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_the_matrix_has_float32_or_better(dtype, expected):
    state = _state(dtype)
    structure = StateStructure(state)
    matrix = structure.to_matrix(state)
    assert matrix.dtype == expected
    back = structure.to_state(matrix)
    assert {leaf.dtype.name for leaf in tree.flatten(back)} == {dtype}
    for leaf, original in zip(tree.flatten(back), tree.flatten(state), strict=True):
        assert tf.reduce_all(leaf == original)


def test_dynamic_batches_keep_the_static_features():
    @tf.function(input_signature=[tf.TensorSpec([None, 2, 3])])
    def round_trip(x):
        structure = StateStructure((x, x[:, 0]))
        matrix = structure.to_matrix(structure.template)
        assert matrix.shape.as_list() == [None, 9]
        back = structure.to_state(matrix)
        assert back[0].shape.as_list() == [None, 2, 3]
        return back

    x = tf.random.stateless_normal((4, 2, 3), [0, 1])
    np.testing.assert_array_equal(round_trip(x)[0], x)
    np.testing.assert_array_equal(round_trip(x)[1], x[:, 0])


def test_dynamic_features():
    """Sequences of any length."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])] * 2)
    def round_trip(x, y):
        structure = StateStructure([x, y])
        return structure.to_state(structure.to_matrix([x, y]))

    x = tf.random.stateless_normal((2, 5, 3), [0, 1])
    y = tf.random.stateless_normal((2, 1, 3), [0, 2])
    np.testing.assert_array_equal(round_trip(x, y)[0], x)
    np.testing.assert_array_equal(round_trip(x, y)[1], y)


def test_where_rows_selects_whole_samples():
    state = _state()
    zeros = tree.map_structure(tf.zeros_like, state)
    mixed = where_rows(tf.constant([True, False]), state, zeros)
    tree.map_structure(
        lambda leaf, chosen: np.testing.assert_array_equal(leaf[0], chosen[0]),
        mixed,
        state,
    )
    tree.map_structure(lambda leaf: np.testing.assert_array_equal(leaf[1], 0), mixed)
    sevens = where_rows(tf.constant([False, True]), 7.0, state)
    tree.map_structure(lambda leaf: np.testing.assert_array_equal(leaf[1], 7), sevens)


def test_where_rows_refuses_a_non_finite_row_for_good():
    """Selection, not multiplication by a mask: 0 * NaN is NaN."""
    poisoned = tf.constant([[np.nan], [1.0]])
    chosen = where_rows(tf.constant([True, False]), 0.0, poisoned)
    np.testing.assert_array_equal(chosen, [[0.0], [1.0]])


def test_check_names_the_leaf():
    structure = StateStructure(_state())
    changed = _state()
    changed["a"] = (changed["a"][0], changed["a"][1][:, :3])
    with pytest.raises(ValueError, match=r"My cell.*state\['a'\]\[1\].*\(2, 3\)"):
        structure.check(changed, "My cell")
    with pytest.raises(ValueError, match="float64"):
        structure.check(_state("float64"), "My cell")
    with pytest.raises(ValueError, match="structure"):
        structure.check({"b": changed["b"]}, "My cell")
    structure.check(_state(), "My cell")


def test_leaves_with_different_numbers_of_rows_are_refused():
    with pytest.raises(ValueError, match=r"same number of rows.*\(2, 4\), \(3, 4\)"):
        StateStructure((tf.zeros((2, 4)), tf.zeros((3, 4))))
