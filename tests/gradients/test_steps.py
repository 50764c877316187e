"""Gradients of a number of steps against the same steps by hand."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.gradients import PhantomGradient, TruncatedGradient, UnrolledGradient
from deq_keras.solvers import FixedPointIteration
from deq_keras.testing.problems import relative_error
from tests.gradients.cases import START, Case, problem_of, steps_by_hand
from tests.regimes import slow


def _assert_close(actual, expected, tolerance):
    for got, want in zip(actual, expected, strict=True):
        assert relative_error(got, want) < tolerance


@pytest.mark.parametrize(
    "num_steps, damping, regime",
    [slow(1, 1.0, "xla"), (4, 0.7, "graph")],
    indirect=["regime"],
)
def test_phantom_steps_start_at_the_equilibrium(num_steps, damping, regime):
    case, solver = Case("float64"), solvers.Broyden(25, 1e-12)
    point = solver.solve(problem_of(case), START).point
    gradient = PhantomGradient(num_steps, damping)
    actual = regime(lambda sources: case.gradients(gradient, solver, sources))
    _, expected = steps_by_hand(case, num_steps, damping, state=point)
    _assert_close(actual(case.sources), expected, 1e-9)
    coarse = FixedPointIteration(3, tol=None)
    value = gradient.solve(problem_of(case), START, coarse).value
    np.testing.assert_array_equal(value, coarse.solve(problem_of(case), START).value)


@pytest.mark.parametrize(
    "num_free_steps, num_steps, regime",
    [(0, 3, "eager"), (4, 1, "eager"), (2, 5, "graph"), slow(2, 5, "xla")],
    indirect=["regime"],
)
def test_truncated_steps_follow_free_steps(num_free_steps, num_steps, regime):
    case, solver = Case("float64"), FixedPointIteration(9, tol=None)
    gradient = TruncatedGradient(
        num_steps, num_free_steps, free_fraction=1.0, free_noise=0.0
    )
    actual = regime(lambda sources: case.gradients(gradient, solver, sources))
    state, expected = steps_by_hand(case, num_steps, num_free_steps=num_free_steps)
    _assert_close(actual(case.sources), expected, 1e-12)
    request = START._replace(seed=1)
    value = regime(lambda: gradient.solve(problem_of(case), request, solver).value)
    assert relative_error(value(), state) < 1e-12


def _unrolled_by_hand(case, damping, num_steps):
    """Damped steps, and a last evaluation of f."""
    with tf.GradientTape() as tape:
        tape.watch(case.sources)
        injection = tf.matmul(case.inputs, case.projection)
        state, _ = steps_by_hand(case, num_steps, damping)
        value = case.apply(state, injection, case.kernel, case.bias)
        loss = tf.reduce_sum(value * case.cotangent)
    return value, tape.gradient(loss, case.sources)


@pytest.mark.parametrize(
    "damping, regime",
    [(1.0, "graph"), (0.6, "eager"), slow(0.6, "xla")],
    indirect=["regime"],
)
def test_fixed_budget_is_a_weight_tied_network(damping, regime):
    case, solver = Case("float64"), FixedPointIteration(5, None, damping=damping)
    actual = regime(lambda sources: case.gradients(UnrolledGradient(), solver, sources))
    state, expected = _unrolled_by_hand(case, damping, num_steps=4)
    _assert_close(actual(case.sources), expected, 1e-12)
    value = UnrolledGradient().solve(problem_of(case), START, solver).value
    assert relative_error(value, state) < 1e-12


def test_checkpoints():
    case, solver = Case("float64"), FixedPointIteration(33, tol=None, damping=0.8)
    gradient = TruncatedGradient(32, 0, 32, damping=0.8, checkpoints=5)

    @tf.function(autograph=False)
    def compute():
        request = START._replace(seed=1)
        with tf.GradientTape() as tape:
            tape.watch(case.sources)
            value = gradient.solve(problem_of(case), request, solver).value
            loss = tf.reduce_sum(value * case.cotangent)
        return value, tape.gradient(loss, case.sources)

    value, actual = compute()
    state, expected = steps_by_hand(case, damping=0.8, num_steps=32)
    assert relative_error(value, state) < 1e-12
    _assert_close(actual, expected, 1e-12)
