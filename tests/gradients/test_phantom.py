"""Phantom gradients against hand-written damped steps."""

import pytest
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.testing.problems import relative_error
from tests.gradients.test_implicit import START, Case
from tests.regimes import slow

SOLVER = solvers.Broyden(25, 1e-12)


def _by_hand(case, num_steps, damping):
    injection = tf.matmul(case.inputs, case.projection)
    start = SOLVER.solve(
        lambda z: case.apply(z, injection, case.kernel, case.bias),
        START,
    ).point
    with tf.GradientTape() as tape:
        tape.watch(case.sources)
        injection = tf.matmul(case.inputs, case.projection)
        state = tf.stop_gradient(start)
        for _ in range(num_steps):
            new = case.apply(state, injection, case.kernel, case.bias)
            state = (1 - damping) * state + damping * new
        loss = tf.reduce_sum(state * case.cotangent)
    return tape.gradient(loss, case.sources)


@pytest.mark.parametrize(
    "num_steps, damping, regime",
    [slow(1, 1.0, "xla"), (4, 0.7, "eager"), (4, 0.7, "graph")],
    indirect=["regime"],
)
def test_equals_damped_steps_by_hand(num_steps, damping, regime):
    case = Case("float64")
    gradient = gradients.PhantomGradient(num_steps, damping)
    compute = regime(lambda sources: case.gradients(gradient, SOLVER, sources))
    actual = compute(case.sources)
    for got, want in zip(actual, _by_hand(case, num_steps, damping), strict=True):
        assert relative_error(got, want) < 1e-9
