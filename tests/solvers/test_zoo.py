"""Every solver passes the checks of plug-ins, on every problem of the zoo."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing import check_solver
from deq_keras.testing.problems import ZOO
from tests.harness import solution_of

# The slowest problem (for iteration, an eigenvalue of -0.9) needs 265, 113, 22.
ENOUGH = {solvers.FixedPointIteration: 300, solvers.Anderson: 150, solvers.Broyden: 30}


@pytest.mark.slow
def test_contract(solver_class):
    check_solver(solver_class, ENOUGH[solver_class], tol=1e-12)


@pytest.mark.parametrize("make", [*ENOUGH, solvers.Aitken])
def test_contract_in_a_graph(make):
    check_solver(make, zoo=["contraction", "nest"], regimes=["graph"])


@pytest.mark.parametrize(
    "solver, regime",
    [
        (solvers.Broyden(30, 1e-10), "graph"),
        (solvers.Broyden(40, 1e-10, history=8), "eager"),
        (solvers.Anderson(60, 1e-10, history=5), "graph"),
    ],
    ids=str,
    indirect=["regime"],
)
def test_expanding_cells_from_any_start(solver, regime):
    """The eigenvalues of f are 3, -2 and 0.5, and the samples start elsewhere."""
    basis = np.linalg.qr(np.random.RandomState(0).normal(size=(3, 3)))[0]
    matrix = basis @ np.diag([3.0, -2.0, 0.5]) @ basis.T
    start, bias = np.random.RandomState(1).normal(size=(2, 4, 3))
    expected = np.linalg.solve(np.eye(3) - matrix, bias.T).T

    @regime
    def solve(start):
        request = solvers.SolveRequest(start)
        return solver.solve(lambda z: z @ tf.constant(matrix.T) + bias, request)

    solution = solve(tf.constant(start))
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(solution.value, expected, atol=1e-7)


@pytest.mark.parametrize(
    "make, options, budget",
    [
        (solvers.FixedPointIteration, {"patience": 3, "noise": 1e-9}, 60),
        (solvers.Anderson, {"history": 8, "mixing": 0.9}, 60),
        (solvers.Anderson, {"history": 5, "ridge_mode": "absolute"}, tf.constant(60)),
        (solvers.Broyden, {"history": 6, "stop_mode": "rel_max"}, 60),
        (solvers.Broyden, {"stop_mode": "abs_max"}, tf.constant(60)),
        (solvers.Aitken, {"limit": 5.0}, 60),
    ],
    ids=str,
)
def test_options_in_a_float64_graph(make, options, budget):
    """In graphs, unlike in eager mode, TensorFlow reads 0.0 as float32."""
    solver, problem = make(tol=1e-8, **options), ZOO["tanh"]()
    solve = tf.function(
        lambda: solution_of(solver, problem, max_iter=budget, seed=3), autograph=False
    )
    solution = solve()
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    image = problem.function(solution.value)
    np.testing.assert_allclose(image, solution.value, rtol=1e-6, atol=1e-7)
