"""States that grow without limit, and states of any magnitude."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.solvers import SolveRequest

MATRIX = np.array([[0.5, 0.2, 0.0], [-0.3, 0.4, 0.1], [0.0, 0.2, -0.6]], "float32")
ROTATION = np.array([[0.9, -0.4, 0.0], [0.4, 0.9, 0.0], [0.0, 0.0, 1.0]], "float32")

DRIFTS = {
    "constant": lambda z: z + 1.0,
    "one of three features": lambda z: z * [0.9, 0.5, 1.0] + 1.0,
    "beside a rotation": lambda z: z @ ROTATION + [0.0, 0.0, 1.0],
    "with an oscillating speed": lambda z: z + 1.0 + 0.5 * tf.cos(z),
    "like a square root": lambda z: z + 1.0 / tf.maximum(z, 1.0),
}


def _solve(solver, function, start):
    request = SolveRequest(start, loop=solvers.LoopOptions(records_trace=False))
    return tf.function(lambda: solver.solve(function, request), autograph=False)()


@pytest.mark.parametrize("drift", DRIFTS)
def test_growing_state_does_not_converge(drift):
    solver = solvers.FixedPointIteration(400, 5e-3)
    solution = _solve(solver, DRIFTS[drift], tf.zeros((1, 3)))
    assert float(solution.residual[0]) < 5e-3
    assert solution.status[0] == solvers.MAX_ITER


@pytest.mark.parametrize(
    "solver",
    [
        solvers.FixedPointIteration(300, 1e-2, damping=0.5),
        solvers.Anderson(300, 1e-2, history=8),
        solvers.Aitken(300, 1e-2),
        # Its steps grow a thousandfold. In float32, z + 1 = z from the sixth on.
        solvers.Broyden(5, 1e-2),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_no_solver_converges_on_a_constant_drift(solver):
    solution = _solve(solver, lambda z: z + 1.0, tf.fill((1, 3), 50.0))
    assert solution.status[0] == solvers.MAX_ITER


@pytest.mark.parametrize("factor", [0.5, 0.99])
def test_slow_contraction_ends_at_its_tolerance(factor):
    solver = solvers.FixedPointIteration(1000, 1e-3)
    solution = _solve(solver, lambda z: factor * z + 1.0, tf.zeros((1, 1)))
    steps = np.arange(1, 1000)
    residuals = factor ** (steps - 1) * (1 - factor) / (1 - factor**steps)
    assert solution.status[0] == solvers.CONVERGED
    assert solution.num_evaluations[0] == np.argmax(residuals <= 1e-3) + 1


@pytest.mark.parametrize("solver_class", [solvers.Anderson, solvers.Broyden])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.usefixtures("full_float32")
def test_states_of_any_magnitude(solver_class, scale):
    bias = np.array([[1.0, 2.0, -3.0]]) * scale
    function = lambda z: z @ MATRIX + tf.constant(bias, tf.float32)  # noqa: E731
    solution = solver_class(60, 1e-5).solve(function, SolveRequest(tf.zeros((1, 3))))
    assert solution.status[0] == solvers.CONVERGED
    assert 5 < solution.num_evaluations[0] <= 25
    expected = np.linalg.solve(np.eye(3) - MATRIX.T.astype("float64"), bias[0])
    actual = solution.value.numpy()[0].astype("float64")
    np.testing.assert_allclose(actual / scale, expected / scale, rtol=1e-3)


@pytest.mark.parametrize("solver_class", [solvers.Anderson, solvers.Broyden])
def test_a_fixed_point_of_zero_is_reached(solver_class):
    request = SolveRequest(tf.ones((1, 3)))
    solution = solver_class(40, 1e-3).solve(lambda z: z @ MATRIX, request)
    assert solution.status[0] == solvers.CONVERGED
    np.testing.assert_allclose(solution.value, np.zeros((1, 3)), atol=1e-10)
