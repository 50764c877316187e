"""`SolveRequest(num_states=n)`: states along a solve."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import multistart, solvers
from deq_keras.layers import DEQ, DenseCell
from deq_keras.solvers import SolveRequest

SLOPES = tf.constant([[0.9], [0.2]], tf.float64)
START = tf.zeros((2, 1), tf.float64)


def _linear(z):
    return SLOPES * z + 1.0


def _solve(solver, **options):
    return solver.solve(_linear, SolveRequest(START, **options))


def test_counts_are_rounded_fractions_of_the_budget(regime):
    solver = solvers.FixedPointIteration(max_iter=10, tol=None)

    def run(start):
        solution = solver.solve(_linear, SolveRequest(start, num_states=4))
        return solution.states

    states = regime(run)(START)
    for state, count in zip(states, [3, 5, 8, 10], strict=True):
        expected = (1 - SLOPES**count) / (1 - SLOPES)
        np.testing.assert_allclose(state.value, expected, rtol=1e-14)
        np.testing.assert_array_equal(state.num_evaluations, count)


@pytest.mark.parametrize("name", ["anderson", "broyden", "fixed_point_iteration"])
def test_states_equal_shorter_solves(name):
    """Also with a memory, which is not restarted, and after a sample converged."""
    kind = type(solvers.get(name))
    states = _solve(kind(max_iter=9, tol=1e-3), num_states=3).states
    for state, count in zip(states, [3, 6, 9], strict=True):
        alone = _solve(kind(max_iter=count, tol=1e-3), records_trace=False)
        for field in ("value", "point", "residual", "status", "num_evaluations"):
            np.testing.assert_array_equal(getattr(state, field), getattr(alone, field))
        assert state.trace.shape == (0, 2)


def test_the_solve_itself_does_not_change():
    solver = solvers.Anderson(max_iter=9, tol=1e-6)
    plain, recorded = _solve(solver), _solve(solver, num_states=2)
    np.testing.assert_array_equal(recorded.value, plain.value)
    np.testing.assert_array_equal(recorded.trace, plain.trace)
    np.testing.assert_array_equal(recorded.states[-1].value, plain.value)
    assert plain.states == ()


def test_a_budget_that_is_a_tensor():
    solver = solvers.FixedPointIteration(max_iter=30, tol=None)

    @tf.function(autograph=False)
    def run(budget):
        request = SolveRequest(START, max_iter=budget, num_states=2)
        return [
            state.num_evaluations for state in solver.solve(_linear, request).states
        ]

    for budget, counts in [(10, [5, 10]), (1, [1, 1])]:
        np.testing.assert_array_equal(run(tf.constant(budget))[0], counts[0])
        np.testing.assert_array_equal(run(tf.constant(budget))[1], counts[1])


def test_a_failed_sample_keeps_its_earlier_state():
    slopes = tf.constant([[1e60], [0.5]], tf.float64)
    solver = solvers.FixedPointIteration(max_iter=8, tol=None)
    states = solver.solve(
        lambda z: slopes * z + 1.0, SolveRequest(START, num_states=2)
    ).states
    assert states[0].status.numpy().tolist() == [solvers.DIVERGED, solvers.MAX_ITER]
    for state in states:
        assert np.all(np.isfinite(state.value))


@pytest.mark.parametrize("num_states", [0, 1.5, 4])
def test_errors(num_states):
    with pytest.raises(ValueError, match=f"num_states={num_states}"):
        _solve(solvers.Anderson(max_iter=3), num_states=num_states)


def test_multistart_refuses_states():
    deq = DEQ(DenseCell(2))
    request = SolveRequest(num_states=2)
    with pytest.raises(ValueError, match="DEQ.solve"):
        multistart.solve(deq, np.ones((2, 3), "float32"), 2, request=request)
