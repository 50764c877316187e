"""Budgets limit the evaluations of f, and statistics report them."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing.problems import ZOO, linear
from tests.harness import solution_of
from tests.regimes import SOLVERS_IN_TURN, slow


@pytest.mark.parametrize(
    "solver_class, regime",
    [
        (solvers.FixedPointIteration, "xla"),
        (solvers.Anderson, "graph"),
        slow(solvers.Broyden, "xla"),
    ],
    indirect=True,
)
def test_budgets_are_tensors_without_retracing(solver_class, regime):
    problem = ZOO["tanh"]()
    solver = solver_class(max_iter=6)  # Smaller and larger budgets are requested.
    solve = regime(
        lambda z, max_iter, tol: solver.solve(
            problem.function, solvers.SolveRequest(z, max_iter=max_iter, tol=tol)
        )
    )
    for max_iter in (1, 2, 9):
        solution = solve(
            problem.initial_state,
            tf.constant(max_iter),
            tf.constant(0.0, tf.float64),
        )
        expected = solution_of(solver, problem, max_iter=max_iter, tol=0.0)
        assert solution.batch_evaluations == max_iter
        assert solution.trace.shape == (max_iter, 3)
        np.testing.assert_allclose(solution.value, expected.value, rtol=1e-9)
    loose = solve(problem.initial_state, tf.constant(9), tf.constant(0.5, tf.float64))
    assert loose.batch_evaluations < 9
    assert solve.experimental_get_tracing_count() == 1


def test_budgets_of_any_integer_type(solver_class):
    solver = solver_class()
    for dtype in (tf.int64, tf.int16):
        budget = tf.constant(40, dtype)
        solution = solver.solve(
            lambda z: 0.5 * z + 1,
            solvers.SolveRequest(tf.ones((1, 1)), max_iter=budget),
        )
        assert solution.status[0] == solvers.CONVERGED


def test_budget_below_the_limit(solver_class):
    problem = ZOO["tanh"]()
    solver = solver_class(max_iter=5, tol=0.0)
    start = problem.initial_state
    for budget in (3, 5):
        request = solvers.SolveRequest(
            start, tf.constant(budget), loop=solvers.LoopOptions(limit=5)
        )
        solution = solver.solve(problem.function, request)
        assert solution.batch_evaluations == budget
        expected = solution_of(solver, problem, max_iter=budget)
        np.testing.assert_allclose(solution.value, expected.value, rtol=1e-9)
        assert solution.trace.shape == (5, 3)
        assert np.all(np.isnan(solution.trace[budget:]))


def test_equilibrium_at_zero_converges_at_once(solver_class):
    solver = solver_class(max_iter=30, tol=0.0)
    solution = solver.solve(lambda z: 0.5 * z, solvers.SolveRequest(tf.zeros((2, 3))))
    np.testing.assert_array_equal(solution.num_evaluations, 1)
    np.testing.assert_array_equal(solution.residual, 0.0)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)


def test_no_tolerance_returns_the_last_iterate(solver_class):
    # f(z) = -1.2 z with a start near the fixed point: plain iterates drift away.
    problem = linear(np.diag([-1.2, -1.2]), batch=2)
    start = tf.constant(problem.equilibrium + 1e-3)
    solver = solvers.FixedPointIteration(max_iter=5, tol=None)
    last = solver.solve(problem.function, solvers.SolveRequest(start))
    expected = start
    for _ in range(4):
        expected = problem.function(expected)
    np.testing.assert_array_equal(last.point, expected)
    np.testing.assert_array_equal(last.value, problem.function(expected))
    best = solvers.FixedPointIteration(max_iter=5, tol=0.0).solve(
        problem.function, solvers.SolveRequest(start)
    )
    np.testing.assert_array_equal(best.point, start)

    spent = solution_of(solver_class(max_iter=12, tol=None), problem)
    assert spent.batch_evaluations == 12
    np.testing.assert_array_equal(spent.residual, spent.trace[-1])


@SOLVERS_IN_TURN
def test_one_iteration_is_one_application(solver_class, regime):
    problem = ZOO["nest"]()
    solver = solver_class(max_iter=1, tol=None)
    solution = regime(
        lambda z: solver.solve(problem.function, solvers.SolveRequest(z))
    )(problem.initial_state)
    expected = problem.function(problem.initial_state)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12),
        solution.value,
        expected,
    )
