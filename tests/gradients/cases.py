"""The problem for which gradients are compared, and its steps by hand."""

import tensorflow as tf

from deq_keras import solvers
from deq_keras.solvers import SolveRequest
from deq_keras.testing.problems import BATCH, FEATURES
from deq_keras.testing.problems import GradientCase as Case

START = SolveRequest(tf.zeros((BATCH, FEATURES), tf.float64))


def problem_of(case):
    """Returns the problem of a `GradientCase`, with sources that a tape may watch."""
    return solvers.FixedPointProblem(
        lambda z, u: case.apply(z, *u),
        (tf.matmul(case.inputs, case.projection), case.kernel, case.bias),
    )


def steps_by_hand(case, num_steps, damping=1.0, num_free_steps=0, state=None):
    """Returns the state after damped steps, and the gradients of its product with the
    cotangent, through all steps but the first `num_free_steps`."""

    def step(state):
        injection = tf.matmul(case.inputs, case.projection)
        new = case.apply(state, injection, case.kernel, case.bias)
        return state + damping * (new - state)

    if state is None:
        state = tf.zeros((BATCH, FEATURES), case.kernel.dtype)
    for _ in range(num_free_steps):
        state = step(state)
    with tf.GradientTape() as tape:
        tape.watch(case.sources)
        for _ in range(num_steps):
            state = step(state)
        loss = tf.reduce_sum(state * case.cotangent)
    return state, tape.gradient(loss, case.sources)


__all__ = ["BATCH", "FEATURES", "START", "Case", "problem_of", "steps_by_hand"]
