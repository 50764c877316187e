"""States that grow without limit, and states of any magnitude."""

import keras
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


def _unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def _on_a_sphere(solver, dtype="float32", shape=(64, 8)):
    """Returns z <- (.9 z + .1 u) / |.9 z + .1 u|, u and z_0."""
    random = np.random.default_rng(0)
    u, start = (tf.constant(_unit(random.normal(size=shape)), dtype) for _ in range(2))

    def solve(start, u):
        function = lambda z: tf.math.l2_normalize(0.9 * z + 0.1 * u, axis=-1)  # noqa: E731
        return solver.solve(function, SolveRequest(start))

    return solve, u, start


def test_normalized_state_ends_at_its_tolerance():
    """NumPy: rounding of |f(z)| = 1 does not delay a sample, alone, in a batch, or
    under XLA."""
    solve, u, start = _on_a_sphere(solvers.FixedPointIteration(200, 0.05))
    z, right = start.numpy().astype("float64"), np.zeros(len(start), int)
    for count in range(1, 200):
        new = _unit(0.9 * z + 0.1 * u.numpy().astype("float64"))
        has_converged = np.linalg.norm(new - z, axis=1) <= 0.05
        right[has_converged & (right == 0)] = count
        z = new
    for jit_compile in (False, True):
        function = tf.function(solve, jit_compile=jit_compile, autograph=False)
        np.testing.assert_array_equal(function(start, u).num_evaluations, right)
        alone = [function(start[i : i + 1], u[i : i + 1]) for i in range(16)]
        alone = [solution.num_evaluations[0] for solution in alone]
        np.testing.assert_array_equal(alone, right[:16])


@pytest.mark.parametrize(
    "solver, dtype",
    [
        (solvers.FixedPointIteration(200, 0.05, damping=0.5), "float32"),
        (solvers.FixedPointIteration(200, 0.05, patience=2), "float64"),
        (solvers.FixedPointIteration(200, 0.05, "rel_max"), "float16"),
        (solvers.FixedPointIteration(200, 0.05), "bfloat16"),
        (solvers.Broyden(200, 0.05), "float32"),
    ],
    ids=["damping", "patience", "rel_max", "bfloat16", "Broyden"],
)
def test_rounding_of_a_constant_norm_is_no_growth(solver, dtype):
    solve, u, start = _on_a_sphere(solver, dtype, (64, 3, 8))
    solution = tf.function(solve, autograph=False)(start, u)
    first = np.argmax(solution.trace.numpy() <= 0.05, axis=0) + 1
    np.testing.assert_array_equal(solution.num_evaluations, first)


def test_a_norm_that_hardly_changes_is_no_drift():
    """The epsilon of a normalization makes its norm depend on its input."""
    random = np.random.default_rng(0)
    u, start = (tf.constant(random.normal(size=(64, 16)), tf.float32) for _ in "us")
    norm = keras.layers.LayerNormalization(epsilon=1e-3)
    solver = solvers.FixedPointIteration(200, 0.02)
    solution = _solve(solver, lambda z: norm(0.95 * z + 0.05 * u), start)
    residuals = []
    for _ in range(60):
        value = norm(0.95 * start + 0.05 * u)
        residuals.append(np.linalg.norm(value - start, axis=1))
        residuals[-1] /= np.linalg.norm(value, axis=1)
        start = value
    first = np.argmax(np.array(residuals) <= 0.02, axis=0) + 1
    np.testing.assert_array_equal(solution.num_evaluations, first)


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
