"""The policy for non-finite samples."""

import numpy as np
import tensorflow as tf

from deq_keras.core import nonfinite

INF, NAN = np.inf, np.nan


def test_finite_rows_checks_every_leaf():
    state = (
        tf.constant([[1.0, 2.0], [np.nan, 0.0], [1.0, 1.0], [0.0, 0.0]]),
        tf.constant([[[1.0]], [[1.0]], [[-np.inf]], [[1.0]]]),
        tf.constant([[1], [2], [3], [4]]),
    )
    finite = nonfinite.finite_rows(state)
    np.testing.assert_array_equal(finite, [True, False, False, True])
    assert nonfinite.finite_rows(tf.constant([[1], [2]])) is None


def test_a_quotient_does_not_hide_an_overflow():
    scale = tf.constant([2.0, INF])
    result = nonfinite.propagate_nonfinite(scale, 1.0 / scale)
    np.testing.assert_array_equal(result, [0.5, INF])


def test_a_non_finite_warm_start_is_replaced():
    warm = {"a": tf.constant([[1.0], [NAN]]), "b": tf.constant([[2.0], [2.0]])}
    cold = {"a": tf.zeros((2, 1)), "b": tf.zeros((2, 1))}
    start = nonfinite.usable_state(warm, cold)
    np.testing.assert_array_equal(start["a"], [[1.0], [0.0]])
    np.testing.assert_array_equal(start["b"], [[2.0], [0.0]])


def test_statistics_ignore_non_finite_values():
    values = tf.constant([1.0, INF, NAN, 2.0])
    total, count = nonfinite.finite_total(values, "float32")
    assert float(total) == 3.0 and float(count) == 2.0


def test_gate_stops_all_gradients_if_a_usable_sample_failed():
    usable = tf.constant([True, False])
    for failed, expected in (([False, False], 2.0), ([False, True], 2.0), ([True], 0)):
        x, gate = tf.Variable(1.0), nonfinite.GradientGate()
        with tf.GradientTape() as tape:
            passed, label = gate((x, tf.constant(3)))
            loss = passed**2
        gate.close_if(tf.constant(failed), usable[: len(failed)])
        assert int(label) == 3
        assert float(tape.gradient(loss, x)) == expected
