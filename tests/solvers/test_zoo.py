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
    solution = regime(lambda z: solver.solve(problem.function, z))(
        problem.initial_state
    )
    point, value = _matrix(solution.point), _matrix(solution.value)
    again = _matrix(problem.function(solution.point))
    residual = np.linalg.norm(again - point, axis=1) / np.linalg.norm(again, axis=1)

    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(value, again, rtol=0, atol=1e-13)
    np.testing.assert_allclose(solution.residual, residual, rtol=1e-6, atol=1e-13)
    assert residual.max() <= TOL
    if problem.equilibrium is not None:
        np.testing.assert_allclose(value, problem.equilibrium, rtol=0, atol=3e-3)


def test_broyden_and_anderson_reach_full_accuracy():
    for name, make_problem in ZOO.items():
        problem = make_problem()
        solver = solvers.Broyden(max_iter=60, tol=1e-12)
        solution = solver.solve(problem.function, problem.initial_state)
        np.testing.assert_array_equal(solution.status, solvers.CONVERGED, err_msg=name)
        if problem.equilibrium is not None:
            np.testing.assert_allclose(
                solution.value, problem.equilibrium, rtol=0, atol=1e-9, err_msg=name
            )


def test_accelerated_solvers_need_fewer_evaluations_than_iteration():
    problem = ZOO["negative_spectrum"]()
    evaluations = [
        cls(max_iter=400, tol=1e-6)
        .solve(problem.function, problem.initial_state)
        .batch_evaluations.numpy()
        for cls in (solvers.FixedPointIteration, solvers.Anderson, solvers.Broyden)
    ]
    assert evaluations[0] > 60
    assert max(evaluations[1:]) < 20
