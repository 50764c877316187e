"""Fixed-point problems and the requests of their solves."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell

INPUTS = np.random.RandomState(0).normal(size=(4, 3)).astype("float32")


def _problem(**options):
    injection = {"rate": tf.constant([[0.1], [0.2], [0.3]]), "kernel": tf.eye(2)}
    return solvers.FixedPointProblem(
        lambda z, u: u["rate"] * tf.matmul(z, u["kernel"]) + 1.0, injection, **options
    )


def test_rows_are_the_problem_of_these_samples():
    mask = tf.constant([True, False, True])
    problem = _problem(mask=mask, has_rows={"rate": True, "kernel": False})
    state = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    some = problem.rows(tf.constant([2, 1]))
    expected = [[2.5, 2.8], [0, 0]]
    np.testing.assert_allclose(some(tf.gather(state, [2, 1])), expected, rtol=1e-6)
    np.testing.assert_allclose(problem(state)[0], [1.1, 1.2], rtol=1e-6)


@pytest.mark.parametrize("has_rows", [None, {"rate": "unknown", "kernel": False}])
def test_unknown_rows_raise(has_rows):
    with pytest.raises(ValueError, match="which tensors of the injection"):
        _problem(has_rows=has_rows).rows(tf.constant([0]))


def test_any_solver_solves_the_problem_of_a_layer():
    deq = layers.DEQ(TanhCell(5))
    problem = deq.problem(INPUTS)  # Builds the layer.
    request = deq.request(problem, solvers.SolveRequest(tol=1e-6))
    for solver in (solvers.Anderson(100), solvers.Broyden(100)):
        solution = solver.solve(problem, request)
        np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
        np.testing.assert_allclose(problem(solution.value), solution.value, atol=1e-5)
    linearization = problem.linearize(solution.point)
    np.testing.assert_allclose(linearization.value, solution.value, atol=1e-5)
    again = deq.problem(injection=deq.inject(tf.constant(INPUTS)))
    np.testing.assert_array_equal(again(solution.point), problem(solution.point))


@pytest.mark.parametrize("solver", ["anderson", "peaceman_rachford"])
def test_state_instead_of_a_request_raises(solver):
    cell = layers.MonotoneDenseCell(5)
    deq = layers.DEQ(cell, solver)
    problem = deq.problem(INPUTS)
    for solve, first in ((deq.solver.solve, problem), (deq.solve, INPUTS)):
        with pytest.raises(ValueError, match="(?s)SolveRequest.*Received"):
            solve(first, np.zeros((4, 5), "float32"))
    with pytest.raises(ValueError, match="state"):
        deq.solver.solve(problem, solvers.SolveRequest())
    with pytest.raises(ValueError, match="`inputs` or `injection`"):
        deq.problem()


def test_a_result_is_assessed_without_an_evaluation():
    solver = solvers.FixedPointIteration(tol=0.1)
    point = tf.constant([[1.0], [1.0], [1.0], [1.0]])
    value = tf.constant([[1.05], [2.0], [np.nan], [1.0]])
    failed = tf.constant([False, False, False, True])
    solution = solver.assess(point, value, failed, solver.tol)
    expected = [solvers.CONVERGED, solvers.MAX_ITER, *[solvers.DIVERGED] * 2]
    np.testing.assert_array_equal(solution.status, expected)
    np.testing.assert_allclose(
        solution.residual, [0.05 / 1.05, 0.5, np.inf, np.inf], 1e-6
    )
    np.testing.assert_allclose(solution.value[:, 0], [1.05, 2.0, 1.0, 1.0])
