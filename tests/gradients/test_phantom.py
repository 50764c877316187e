"""Phantom gradients against hand-written damped steps."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, solvers
from deq_keras.solvers import SolveRequest
from deq_keras.testing.problems import relative_error
from tests.gradients.test_implicit import BATCH, FEATURES, Case

SOLVER = solvers.Broyden(25, 1e-12)


def _by_hand(case, num_steps, damping):
    injection = tf.matmul(case.inputs, case.projection)
    start = SOLVER.solve(
        lambda z: case.apply(z, injection, case.kernel, case.bias),
        SolveRequest(tf.zeros((BATCH, FEATURES), tf.float64)),
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


@pytest.mark.parametrize("num_steps, damping", [(1, 1.0), (4, 0.7)])
def test_equals_damped_steps_by_hand(num_steps, damping, regime):
    case = Case("float64")
    gradient = gradients.PhantomGradient(num_steps, damping)
    compute = regime(lambda sources: case.gradients(gradient, SOLVER, sources))
    actual = compute(case.sources)
    for got, want in zip(actual, _by_hand(case, num_steps, damping), strict=True):
        assert relative_error(got, want) < 1e-9


def test_one_step_is_the_jacobian_free_gradient():
    """The cotangent goes straight through one application of f at z*."""
    case = Case("float64")
    injection = tf.matmul(case.inputs, case.projection)
    solution = SOLVER.solve(
        lambda z: case.apply(z, injection, case.kernel, case.bias),
        SolveRequest(tf.zeros((BATCH, FEATURES), tf.float64)),
    )
    with tf.GradientTape() as tape:
        tape.watch(case.bias)
        value = case.apply(solution.point, injection, case.kernel, case.bias)
    expected = tape.gradient(value, case.bias, output_gradients=case.cotangent)
    actual = case.gradients(gradients.PhantomGradient(1, 1.0), SOLVER, case.sources)
    assert relative_error(actual[1], expected) < 1e-12


def test_more_steps_come_closer_to_the_implicit_gradient():
    case = Case("float64")
    exact = case.gradients(gradients.ImplicitGradient(SOLVER), SOLVER, case.sources)
    errors = [
        relative_error(
            case.gradients(
                gradients.PhantomGradient(num_steps, 1.0), SOLVER, case.sources
            )[0],
            exact[0],
        )
        for num_steps in (1, 10, 60)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_second_derivatives_are_those_of_the_steps():
    u = tf.constant([[0.3]], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(u)
        with tf.GradientTape() as inner:
            inner.watch(u)
            value = (
                gradients.PhantomGradient(1, 1.0)
                .solve(
                    solvers.FixedPointProblem(lambda z, u: u**3 + 0.0 * z, u),
                    SolveRequest(tf.zeros_like(u)),
                    SOLVER,
                )
                .value
            )
        first = inner.gradient(value, u)
    match = "PhantomGradient has only approximate second derivatives"
    with pytest.warns(UserWarning, match=match):
        second = outer.gradient(first, u)
    np.testing.assert_allclose(second, 6 * 0.3, rtol=1e-9)
