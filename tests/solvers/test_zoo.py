"""Every solver passes the checks of plug-ins, on every problem of the zoo."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.testing import check_solver
from deq_keras.testing.problems import ZOO
from tests.harness import solution_of

# The slowest problem (for iteration, an eigenvalue of -0.9) needs 265, 113, 22.
ENOUGH = {
    solvers.FixedPointIteration: 300,
    solvers.Anderson: 150,
    solvers.Broyden: 30,
}


@pytest.mark.slow  # The example of `check_solver` is a fast test of Anderson.
def test_contract(solver_class):
    check_solver(solver_class, ENOUGH[solver_class], tol=1e-12)


def test_accelerated_solvers_need_fewer_evaluations():
    problem = ZOO["negative_spectrum"]()
    evaluations = []
    for cls in (solvers.FixedPointIteration, solvers.Anderson, solvers.Broyden):
        solver = cls(max_iter=ENOUGH[cls], tol=1e-6)
        solution = solution_of(solver, problem)
        np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
        evaluations.append(int(solution.batch_evaluations))
    assert evaluations[0] > 60
    assert max(evaluations[1:]) < 20


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
