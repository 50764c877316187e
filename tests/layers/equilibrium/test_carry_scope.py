"""Training calls that go on from given states."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell, TwoScaleCell

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")
SHORT = solvers.FixedPointIteration(max_iter=1, tol=None)


def _layer(**arguments):
    return layers.DEQ(TanhCell(5), SHORT, "unrolled", None, **arguments)


def test_those_that_go_on_and_others(exact_regime):
    deq = _layer(initial_state="zeros")
    state = np.random.RandomState(1).normal(size=(4, 5)).astype("float32")
    state[2] = np.nan
    deq(INPUTS)

    def train(inputs, state):
        with layers.CarryScope(state, tf.constant([True, False, True, True])) as scope:
            outputs = deq(inputs, training=True)
        return outputs, scope.state, scope.solution.num_evaluations

    outputs, kept, evaluations = exact_regime(train)(INPUTS, state)
    start = np.where([[True], [False], [False], [True]], state, 0.0)
    expected = deq(INPUTS, initial_state=start)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    np.testing.assert_array_equal(outputs, kept)
    np.testing.assert_array_equal(evaluations, 1)
    assert layers.CarryScope.entered() is None


def test_no_gradient_flows_through_what_is_kept():
    deq = _layer()
    with (
        tf.GradientTape() as tape,
        layers.CarryScope(tf.zeros((4, 5)), [True] * 4) as s,
    ):
        outputs = deq(INPUTS, training=True)
        kept, loss = tf.reduce_sum(s.state), tf.reduce_sum(outputs)
        both = kept + 0.0 * loss
    assert all(np.all(g == 0.0) for g in tape.gradient(both, deq.trainable_weights))


def test_inference_takes_no_notice():
    deq = _layer()
    with layers.CarryScope(tf.ones((4, 5)), [True] * 4) as scope:
        outputs = deq(INPUTS)
    np.testing.assert_array_equal(outputs, deq(INPUTS))
    assert scope.state is None and scope.solution is None


def test_nests_and_precisions():
    deq = layers.DEQ(TwoScaleCell(2, dtype="mixed_bfloat16"), dtype="mixed_bfloat16")
    inputs = {"x": INPUTS, "y": INPUTS}
    state = {"vector": tf.ones((4, 2)), "map": tf.ones((4, 2, 1))}
    with layers.CarryScope(state, [True] * 4) as scope:
        deq(inputs, training=True)
    assert scope.state["map"].dtype == tf.bfloat16


def test_what_is_refused():
    deq = _layer()
    with layers.CarryScope(tf.zeros((3, 5)), [True] * 3):
        with pytest.raises(ValueError, match="The carried state must have the shapes"):
            deq(INPUTS, training=True)
    with layers.CarryScope(tf.zeros((4, 5)), [True] * 4):
        deq(INPUTS, training=True)
        with pytest.raises(ValueError, match="called once in a training step"):
            deq(INPUTS, training=True)


def test_a_step_that_was_compiled_outside_is_refused():
    model = keras.Sequential([keras.Input((3,)), _layer()])
    model.compile("sgd", "mse")
    targets = np.zeros((4, 5), "float32")
    for _ in range(2):  # Traced within the scope, and before it.
        with layers.CarryScope(tf.zeros((4, 5)), [True] * 4):
            with pytest.raises(ValueError, match="CarryScope does not reach"):
                model.train_on_batch(INPUTS, targets)
            model.predict(INPUTS, verbose=0)
        model.train_on_batch(INPUTS, targets)
