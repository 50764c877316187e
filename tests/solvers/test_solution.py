"""Traces, best iterates, statuses, structures and dtypes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing.problems import ZOO
from tests.solvers.conftest import SOLVERS


@pytest.mark.parametrize(
    "solver_class, stop_mode",
    [*zip(SOLVERS, itertools.cycle(("rel", "abs")))],
    indirect=["solver_class"],
)
def test_the_trace_holds_the_residual_of_every_evaluation(solver_class, stop_mode):
    problem = ZOO["tanh"]()
    points = []

    def recorded(z):
        points.append(z.numpy())
        return problem.function(z)

    solver = solver_class(max_iter=30, tol=1e-4, stop_mode=stop_mode)
    solution = solver.solve(recorded, solvers.SolveRequest(problem.initial_state))
    expected = np.full((30, 3), np.nan)
    for k, point in enumerate(points):
        value = problem.function(point).numpy()
        norm = np.linalg.norm(value - point, axis=1)
        if stop_mode == "rel":
            norm /= np.linalg.norm(value, axis=1)
        live = k < solution.num_evaluations.numpy()
        expected[k, live] = norm[live]
    np.testing.assert_allclose(solution.trace, expected, rtol=1e-9)
    last = np.array(solution.num_evaluations) - 1
    np.testing.assert_array_equal(
        solution.residual, solution.trace.numpy()[last, np.arange(3)]
    )


def test_the_best_iterate_is_kept(solver_class):
    problem = ZOO["non_normal"]()
    start = tf.constant(problem.equilibrium + 1e-4)
    start = tf.where([[True], [False], [True]], start, tf.zeros_like(start))
    solution = solver_class(max_iter=4, tol=1e-12).solve(
        problem.function, solvers.SolveRequest(start)
    )
    np.testing.assert_array_equal(solution.residual, np.nanmin(solution.trace, axis=0))
    residual = problem.function(solution.point) - solution.point
    norms = np.linalg.norm(residual, axis=1)
    norms /= np.linalg.norm(problem.function(solution.point), axis=1)
    np.testing.assert_allclose(solution.residual, norms, rtol=1e-9)
    best_steps = np.argmin(solution.trace.numpy(), axis=0)
    if solver_class is solvers.FixedPointIteration:
        # Non-normality: the residual grew, and for some samples only.
        assert len(set(best_steps)) > 1


def test_residuals_at_the_tolerance_count_as_converged():
    solver = solvers.FixedPointIteration(max_iter=5, tol=1.0, stop_mode="abs")
    solution = solver.solve(lambda z: z + 1.0, solvers.SolveRequest(tf.zeros((2, 1))))
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)


def test_a_half_precision_cell_gets_float32_solver_arithmetic():
    """The mixture of bfloat16 iterates reaches the accuracy of a few roundings."""
    function = ZOO["tanh"]("float64").function

    def rounded(z):
        return tf.cast(function(tf.cast(z, tf.float64)), tf.bfloat16)

    exact = solvers.Broyden(60, 1e-12).solve(
        function, solvers.SolveRequest(tf.zeros((3, 6), tf.float64))
    )
    solution = solvers.Anderson(max_iter=20, tol=0.0).solve(
        rounded, solvers.SolveRequest(tf.zeros((3, 6), tf.bfloat16))
    )
    error = tf.cast(solution.value, tf.float64) - exact.value
    assert np.abs(error).max() < 2**-6
    assert solution.value.dtype == solution.point.dtype == "bfloat16"
    assert solution.residual.dtype == solution.trace.dtype == "float32"


def test_mixed_dtypes_are_kept_leaf_by_leaf(solver_class):
    state = {
        "half": tf.zeros((2, 3), tf.float16),
        "double": tf.zeros((2, 2), "float64"),
    }

    def function(state):
        return {
            "half": 0.5 * state["half"] + 1,
            "double": 0.25 * state["double"] + tf.cast(state["half"][:, :2], "float64"),
        }

    solver = solver_class(max_iter=40, tol=1e-3)
    solution = solver.solve(function, solvers.SolveRequest(state))
    assert solution.value["half"].dtype == "float16"
    assert solution.value["double"].dtype == "float64"
    np.testing.assert_allclose(solution.value["double"], 8 / 3, rtol=5e-3)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: (s[0], tf.cast(s[1], tf.float64)),
        lambda s: (s[0][:, :2], s[1]),
        lambda s: [s[0]],
    ],
    ids=["dtype", "shape", "length"],
)
def test_function_that_changes_the_structure_raises(function):
    state = (tf.zeros((2, 3)), tf.zeros((2, 1)))
    with pytest.raises(ValueError, match="Received"):
        solvers.Anderson().solve(function, solvers.SolveRequest(state))


@pytest.mark.parametrize(
    "state", [(), tf.constant(1.0), tf.zeros((2, 3), tf.int32)], ids=str
)
def test_other_states_raise(state):
    with pytest.raises(ValueError, match="Received"):
        solvers.Anderson().solve(lambda z: z, solvers.SolveRequest(state))


def test_best_evaluation_has_the_smallest_residual():
    nan, inf = float("nan"), float("inf")
    trace = tf.constant([[nan, 3.0, 2.0], [inf, 1.0, 2.0], [nan, 2.0, nan]])
    zeros = tf.zeros((3,))
    solution = solvers.Solution(zeros, zeros, zeros, zeros, zeros, zeros, trace)
    np.testing.assert_array_equal(solution.best_evaluation, [0, 2, 1])
    with pytest.raises(ValueError, match="records_trace=True"):
        solution._replace(trace=trace[:0]).best_evaluation  # noqa: B018
