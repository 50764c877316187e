"""Budgets limit the evaluations of f, and statistics report them."""

import numpy as np
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing.problems import ZOO, linear
from tests.harness import solution_of


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
