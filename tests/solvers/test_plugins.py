"""Solvers of users."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import layers, solvers
from tests.layers.cells import TanhCell

INPUTS = np.random.RandomState(0).normal(size=(3, 4)).astype("float32")


class PlainSteps(solvers.FixedPointSolver):
    """Has no memory, and so no `init`."""

    def step(self, evaluation, memory, num_evaluations):
        return evaluation.value, memory


class StepsOfOtherShapes(solvers.FixedPointSolver):
    def step(self, evaluation, memory, num_evaluations):
        return evaluation.value[:1], memory


class StepsWithMemory(solvers.FixedPointSolver):
    """Returns a memory that it did not start with."""

    def step(self, evaluation, memory, num_evaluations):
        return evaluation.value, evaluation.value


class StepsAlone(solvers.FixedPointSolver):
    """Forgets to return the memory."""

    def step(self, evaluation, memory, num_evaluations):
        return evaluation.value


def test_solver_without_init():
    deq = layers.DEQ(TanhCell(5), PlainSteps(max_iter=20, tol=1e-4), "implicit", None)
    expected = solvers.FixedPointIteration(max_iter=20, tol=1e-4)
    solution = deq.solve(INPUTS)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    deq.solver = expected
    np.testing.assert_allclose(solution.value, deq.solve(INPUTS).value, atol=1e-6)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("solver", [StepsOfOtherShapes, StepsWithMemory, StepsAlone])
def test_wrong_result_of_step_raises(solver, is_compiled):
    def call(z):
        return solver().solve(lambda z: 0.5 * z + 1.0, solvers.SolveRequest(z)).value

    call = tf.function(call, autograph=False) if is_compiled else call
    with pytest.raises(ValueError, match=f"`{solver.__name__}.step`.*Received"):
        call(tf.zeros((3, 2)))
