"""Every solver on every problem, in every regime: f(z) = z."""

import numpy as np
import pytest
from keras import tree

from deq_keras import solvers
from tests.problems import ZOO

TOL = 1e-5


def _solver(cls, problem):
    # Undamped iteration needs a hundred evaluations at eigenvalues near -1.
    if cls is solvers.FixedPointIteration and problem == "negative_spectrum":
        return cls(max_iter=60, tol=TOL, damping=0.6)
    # Room for what is needed: Anderson crawls on rotations, and traced Broyden steps
    # take time to compile.
    return cls(max_iter=20 if cls is solvers.Broyden else 60, tol=TOL)


def _matrix(state):
    leaves = [np.reshape(leaf, (len(leaf), -1)) for leaf in tree.flatten(state)]
    return np.concatenate(leaves, axis=1)


# Compiling takes longer than solving: two problems stand for the others under XLA.
COMPILED = ("tanh", "nest")


@pytest.mark.parametrize("name", ZOO)
def test_finds_the_equilibrium(solver_class, name, regime):
    if regime.name == "xla" and name not in COMPILED:
        pytest.skip("compiled for two problems only")
    problem = ZOO[name]()
    solver = _solver(solver_class, name)
    solution = regime(
        lambda z: solver.solve(problem.function, solvers.SolveRequest(z))
    )(problem.initial_state)
    point, value = _matrix(solution.point), _matrix(solution.value)
    again = _matrix(problem.function(solution.point))
    residual = np.linalg.norm(again - point, axis=1) / np.linalg.norm(again, axis=1)

    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(value, again, rtol=0, atol=1e-13)
    np.testing.assert_allclose(solution.residual, residual, rtol=1e-6, atol=1e-13)
    assert residual.max() <= TOL
    if problem.equilibrium is not None:
        # (I - J)^-1 amplifies a residual most where f is not normal: thirty times.
        np.testing.assert_allclose(value, problem.equilibrium, rtol=0, atol=5e-4)


# What the slowest problem needs, of iteration one of eigenvalue -0.9, is 265, 113, 22.
ENOUGH = {
    solvers.FixedPointIteration: 300,
    solvers.Anderson: 150,
    solvers.Broyden: 30,
}


@pytest.mark.parametrize("name", ZOO)
def test_reaches_full_accuracy(solver_class, name):
    problem = ZOO[name]()
    solver = solver_class(max_iter=ENOUGH[solver_class], tol=1e-12)
    solution = solver.solve(
        problem.function, solvers.SolveRequest(problem.initial_state)
    )
    point, value = _matrix(solution.point), _matrix(solution.value)
    again = _matrix(problem.function(solution.point))
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(point, again, rtol=0, atol=1e-10)
    if problem.equilibrium is not None:
        np.testing.assert_allclose(value, problem.equilibrium, rtol=0, atol=1e-10)


def test_accelerated_solvers_need_fewer_evaluations_than_iteration():
    problem = ZOO["negative_spectrum"]()
    evaluations = []
    for cls in (solvers.FixedPointIteration, solvers.Anderson, solvers.Broyden):
        solver = cls(max_iter=ENOUGH[cls], tol=1e-6)
        solution = solver.solve(
            problem.function, solvers.SolveRequest(problem.initial_state)
        )
        np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
        evaluations.append(int(solution.batch_evaluations))
    assert evaluations[0] > 60
    assert max(evaluations[1:]) < 20
