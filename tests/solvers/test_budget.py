"""Budgets: how often f is evaluated, and what the statistics say about it."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing.problems import ZOO, linear
from tests.harness import solution_of
from tests.regimes import SOLVERS_IN_TURN


def _counted(function):
    calls = []

    def counting(state):
        calls.append(1)
        return function(state)

    return counting, calls


def test_stops_when_every_sample_has_converged(solver_class):
    problem = ZOO["tanh"]()
    counting, calls = _counted(problem.function)
    solution = solver_class(max_iter=60, tol=1e-4).solve(
        counting, solvers.SolveRequest(problem.initial_state)
    )
    assert len(calls) == solution.batch_evaluations.numpy() < 60
    assert solution.batch_evaluations == np.max(solution.num_evaluations)


def test_a_budget_in_solve_overrides_the_constructed_one(solver_class):
    problem = ZOO["tanh"]()
    solver = solver_class(max_iter=60, tol=1e-4)
    short = solution_of(solver, problem, max_iter=3)
    assert short.batch_evaluations == 3
    loose = solution_of(solver, problem, tol=0.5)
    full = solution_of(solver, problem)
    assert loose.batch_evaluations < full.batch_evaluations


@pytest.mark.parametrize(
    "solver_class, regime",
    [
        (solvers.FixedPointIteration, "xla"),
        (solvers.Anderson, "graph"),
        (solvers.Broyden, "xla"),
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
    with pytest.raises(ValueError, match="from 1 to 2147483647"):
        solver_class(max_iter=3_000_000_000)
    solver = solver_class()
    with pytest.raises(ValueError, match="from 1 to 2147483647"):
        solver.solve(
            lambda z: 0.5 * z, solvers.SolveRequest(tf.ones((1, 1)), max_iter=2**31)
        )
    for dtype in (tf.int64, tf.int32, tf.int16):
        budget = tf.constant(40, dtype)
        solution = solver.solve(
            lambda z: 0.5 * z + 1,
            solvers.SolveRequest(tf.ones((1, 1)), max_iter=budget),
        )
        assert solution.status[0] == solvers.CONVERGED


@SOLVERS_IN_TURN
def test_a_lower_budget_ends_a_solve_sooner(solver_class, regime):
    problem = ZOO["tanh"]()
    solver = solver_class(max_iter=5, tol=0.0)
    solve = regime(
        lambda z, b: solver.solve(problem.function, solvers.SolveRequest(z, b, limit=5))
    )
    for budget in (3, 4, 5):
        solution = solve(problem.initial_state, tf.constant(budget))
        assert solution.batch_evaluations == budget
        expected = solution_of(solver, problem, max_iter=budget)
        np.testing.assert_allclose(solution.value, expected.value, rtol=1e-9)
        assert solution.trace.shape == (5, 3)
        assert np.all(np.isnan(solution.trace[budget:]))


@pytest.mark.parametrize("stop_mode", ["rel", "abs"])
def test_an_equilibrium_at_zero_converges_at_once(solver_class, stop_mode):
    solver = solver_class(max_iter=30, tol=0.0, stop_mode=stop_mode)
    solution = solver.solve(lambda z: 0.5 * z, solvers.SolveRequest(tf.zeros((2, 3))))
    np.testing.assert_array_equal(solution.num_evaluations, 1)
    np.testing.assert_array_equal(solution.residual, 0.0)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)


def test_zero_tolerance_spends_the_budget_and_improves(solver_class):
    problem = ZOO["tanh"]()
    solution = solution_of(solver_class(max_iter=25, tol=0.0), problem)
    # A residual of exactly zero would be convergence, and is the only other way out.
    spent = (solution.num_evaluations == 25) | (solution.residual == 0.0)
    assert np.all(spent)
    assert np.max(solution.residual) < 1e-6


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


def test_the_second_evaluation_is_at_f_of_the_first_point(solver_class):
    problem = ZOO["tanh"]()
    solution = solution_of(solver_class(max_iter=2, tol=None), problem)
    np.testing.assert_allclose(
        solution.point, problem.function(problem.initial_state), rtol=1e-13
    )


def test_a_bad_budget_in_solve_is_refused(solver_class):
    with pytest.raises(ValueError, match="max_iter=0"):
        solver_class().solve(lambda z: z, solvers.SolveRequest([[1.0]], max_iter=0))
    with pytest.raises(ValueError, match="tol=-1"):
        solver_class().solve(lambda z: z, solvers.SolveRequest([[1.0]], tol=-1))


@pytest.mark.parametrize(
    "name, value",
    [
        ("limit", 0),
        ("limit", 2.5),
        ("max_iter", tf.constant([3, 4])),
        ("takes_last", "no"),
        ("records_trace", 1),
        ("allows_compaction", None),
        ("checkpoints", 0),
        ("checkpoints", -1),  # It once made the loop endless.
        ("halting", True),
    ],
)
def test_a_bad_value_in_a_request_is_refused_and_named(name, value):
    request = solvers.SolveRequest([[1.0]], **{name: value})
    with pytest.raises(ValueError, match=f"`{name}` must be .* Received: {name}"):
        solvers.Anderson(max_iter=8).solve(lambda z: 0.5 * z, request)
