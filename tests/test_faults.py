"""What happens to a sample that is not finite."""

import numpy as np
import tensorflow as tf

from deq_keras.faults import (
    DIVERGED,
    finite_rows,
    finite_total,
    improves,
    nan_unless,
    unless_failed,
    usable_start,
    with_failed,
)

INF, NAN = np.inf, np.nan


def test_finite_rows_looks_at_every_leaf():
    state = (
        tf.constant([[1.0, 2.0], [np.nan, 0.0], [1.0, 1.0], [0.0, 0.0]]),
        tf.constant([[[1.0]], [[1.0]], [[-np.inf]], [[1.0]]]),
        tf.constant([[1], [2], [3], [4]]),
    )
    np.testing.assert_array_equal(finite_rows(state), [True, False, False, True])
    assert finite_rows(tf.constant([[1], [2]])) is None


def test_what_is_not_finite_is_never_the_best():
    error = tf.constant([0.5, INF, NAN, 2.0])
    best = tf.constant([1.0, INF, INF, 1.0])
    np.testing.assert_array_equal(improves(error, best), [True, False, False, False])
    np.testing.assert_array_equal(improves(error, None), [True, False, False, True])


def test_only_searched_samples_fail():
    status = with_failed(
        tf.constant([1, 0, 1]),
        tf.constant([True, False, True]),
        tf.constant([NAN, NAN, 1.0]),
    )
    np.testing.assert_array_equal(status, [DIVERGED, 0, 1])


def test_a_quotient_does_not_hide_an_overflow():
    scale = tf.constant([2.0, INF])
    np.testing.assert_array_equal(unless_failed(scale, 1.0 / scale), [0.5, INF])


def test_a_warm_start_that_is_not_finite_is_another():
    warm = {"a": tf.constant([[1.0], [NAN]]), "b": tf.constant([[2.0], [2.0]])}
    cold = {"a": tf.zeros((2, 1)), "b": tf.zeros((2, 1))}
    start = usable_start(warm, cold)
    np.testing.assert_array_equal(start["a"], [[1.0], [0.0]])
    np.testing.assert_array_equal(start["b"], [[2.0], [0.0]])


def test_statistics_leave_out_what_is_not_finite():
    total, count = finite_total(tf.constant([1.0, INF, NAN, 2.0]), "float32")
    assert float(total) == 3.0 and float(count) == 2.0
    np.testing.assert_array_equal(
        nan_unless(tf.constant([True, False]), tf.constant([1.0, 1.0])),
        [1.0, NAN],
    )
