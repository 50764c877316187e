"""The policy for non-finite samples."""

import numpy as np
import tensorflow as tf

from deq_keras.core import nonfinite
from deq_keras.core.linearization import linearize

INF, NAN = np.inf, np.nan


def test_a_quotient_does_not_hide_an_overflow():
    scale = tf.constant([2.0, INF])
    result = nonfinite.propagate_nonfinite(scale, 1.0 / scale)
    np.testing.assert_array_equal(result, [0.5, INF])


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


def test_failed_sample_has_no_residual_and_zero_products():
    factors = tf.constant([[0.5], [NAN]])
    linearization = linearize(lambda state: factors * state, tf.ones((2, 3)))
    usable = nonfinite.usable_linearization(linearization, tf.constant([False, True]))
    np.testing.assert_array_equal(usable.value, [[0.5] * 3, [1.0] * 3])
    np.testing.assert_array_equal(usable.vjp(tf.ones((2, 3))), [[0.5] * 3, [0.0] * 3])
