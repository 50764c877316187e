"""The loop of a solve: its memory, and the steps of Anderson and Broyden."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing.problems import ZOO
from tests.harness import solution_of


@pytest.mark.parametrize(
    "solver, budget, expected",
    [
        (solvers.FixedPointIteration(), 60, 0),
        (solvers.Broyden(), 12, 11),  # One state for each iteration.
        (solvers.Broyden(history=4), 60, 4),
        (solvers.Anderson(history=5), 60, 10),  # Two for each column of the history.
        (solvers.Anderson(history=5), 2, 2),
    ],
)
def test_number_of_stored_states(solver, budget, expected):
    leaves = tf.nest.flatten(solver.init(tf.zeros((2, 7)), budget))
    leaves = [leaf.stack() if hasattr(leaf, "stack") else leaf for leaf in leaves]
    sizes = [tf.size(leaf) // 14 for leaf in leaves if leaf.shape[-1] == 7]
    assert sum(sizes) == expected


def test_broyden_restarts_when_its_memory_is_full():
    problem = ZOO["contraction"]()
    full = solvers.Broyden(max_iter=40, tol=None)
    short = solvers.Broyden(max_iter=40, tol=None, history=3)
    limited = solution_of(short, problem, max_iter=30)
    np.testing.assert_allclose(limited.value, problem.equilibrium, atol=1e-6)
    # Steps 1 to 3 know everything; the fourth starts anew, with a plain step.
    points = [
        solution_of(solver, problem, max_iter=k).point
        for solver in (full, short)
        for k in (4, 5)
    ]
    before = solution_of(short, problem, max_iter=4)
    np.testing.assert_array_equal(points[0], points[2])
    assert np.abs(points[1] - points[3]).max() > 1e-6
    np.testing.assert_allclose(points[3], before.value, rtol=1e-12)


def test_anderson_ignores_empty_columns():
    problem = ZOO["tanh"]()
    traces = [
        solution_of(
            solvers.Anderson(max_iter=4, tol=None, history=history), problem
        ).trace
        for history in (3, 30)
    ]
    np.testing.assert_allclose(traces[0], traces[1], rtol=1e-12)


def test_a_relative_ridge_works_at_every_scale():
    """Scaling a linear problem scales every iterate; an absolute ridge breaks that."""
    problem = ZOO["negative_spectrum"]()

    def traces(**arguments):
        solver = solvers.Anderson(max_iter=12, tol=None, **arguments)
        scaled = []
        for scale in (1.0, 1e-6):
            function = lambda z, s=scale: problem.function(z / s) * s  # noqa: E731
            start = problem.initial_state * scale
            scaled.append(
                solver.solve(function, solvers.SolveRequest(start)).trace.numpy()
            )
        return scaled

    relative, scaled = traces()
    np.testing.assert_allclose(relative, scaled, rtol=1e-5)
    absolute, scaled = traces(ridge=1e-4, ridge_mode="absolute")
    assert np.abs(scaled[-1] / absolute[-1]).max() > 10


def test_autograph_converts_a_function_of_the_user():
    def f(state):
        if tf.reduce_sum(state) > 100.0:
            state = 0.0 * state
        return 0.5 * state + 1.0

    @tf.function
    def solve(state):
        request = solvers.SolveRequest(state)
        return solvers.FixedPointIteration(30, tol=1e-6).solve(f, request).value

    np.testing.assert_allclose(solve(tf.zeros((2, 3))), 2.0, atol=1e-5)
