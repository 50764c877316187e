"""Samples of a batch are independent."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from tests.regimes import SOLVERS_IN_TURN, slow


@SOLVERS_IN_TURN
def test_non_finite_sample_keeps_its_best_iterate(solver_class, regime):
    def function(z):
        # Sample 1 leaves the domain of the logarithm; sample 0 converges.
        return tf.where(
            tf.constant([[False], [True]]), tf.math.log(z - 0.5), 0.5 * z + 1.0
        )

    solver = solver_class(max_iter=20, tol=1e-5)
    start = tf.constant([[0.0], [2.0]], tf.float64)
    solution = regime(lambda z: solver.solve(function, solvers.SolveRequest(z)))(start)
    np.testing.assert_array_equal(
        solution.status, [solvers.CONVERGED, solvers.DIVERGED]
    )
    finite = solution.trace[:, 1].numpy()
    finite = finite[np.isfinite(finite)]
    assert finite.size >= 1
    np.testing.assert_array_equal(solution.residual[1], finite.min())
    assert np.all(np.isfinite(solution.value))
    np.testing.assert_allclose(solution.value[0], 2.0, rtol=1e-4)


def test_explosion_keeps_the_best_iterate():
    solver = solvers.FixedPointIteration(max_iter=60, tol=1e-6)
    solution = solver.solve(lambda z: z**3 + 1.0, solvers.SolveRequest(tf.ones((1, 1))))
    assert solution.status[0] == solvers.DIVERGED
    assert solution.num_evaluations[0] < 60
    np.testing.assert_array_equal(solution.residual[0], np.nanmin(solution.trace))


def test_the_dynamic_batch_and_an_empty_one(solver_class):
    solver = solver_class(max_iter=20, tol=1e-4)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def solve(inputs):
        return solver.solve(
            lambda z: tf.tanh(0.5 * z + inputs),
            solvers.SolveRequest(tf.zeros_like(inputs)),
        )

    for batch in (1, 5, 0):
        inputs = tf.random.stateless_normal((batch, 3), [1, 2])
        solution = solve(inputs)
        assert solution.value.shape == (batch, 3)
        assert solution.status.shape == (batch,)
        np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    assert solve.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    "exponent, stop_mode, regime",
    [(-30, "rel", "xla"), (-20, "rel_max", "eager"), (30, "rel_max", "graph")],
    indirect=["regime"],
)
def test_states_of_any_magnitude(exponent, stop_mode, regime):
    """Squares of these states under- or overflow in float32."""
    scale = 10.0**exponent
    solver = solvers.FixedPointIteration(40, 1e-3, stop_mode)
    inputs = tf.constant([[1.0, -2.0], [0.5, 1.0]]) * scale
    solve = regime(
        lambda u: solver.solve(
            lambda z: 0.5 * z + u, solvers.SolveRequest(tf.zeros_like(u))
        )
    )
    solution = solve(inputs)
    np.testing.assert_array_equal(solution.num_evaluations, 10)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    np.testing.assert_allclose(solution.residual, 2.0**-10, rtol=1e-2)
    np.testing.assert_allclose(solution.value / scale, 2 * inputs / scale, rtol=1e-2)


@pytest.mark.parametrize(
    "solver_class, stop_mode",
    [(solvers.FixedPointIteration, "rel_max"), (solvers.Anderson, "rel")],
)
def test_one_sample_of_unknown_size(solver_class, stop_mode):
    solver = solver_class(max_iter=20, tol=1e-4, stop_mode=stop_mode)

    @tf.function(input_signature=[tf.TensorSpec([1, None, 4])], autograph=False)
    def solve(inputs):
        request = solvers.SolveRequest(tf.zeros_like(inputs))
        return solver.solve(lambda z: 0.5 * tf.tanh(z) + inputs, request).residual

    assert solve(tf.ones([1, 3, 4])) <= 1e-4


@pytest.mark.parametrize(
    "solver", [solvers.FixedPointIteration(5), slow(solvers.Anderson(5))]
)
def test_one_row_for_an_unknown_number_of_samples_raises(solver):
    """The row would be broadcast to all samples."""

    def mean(state):
        return 0.5 * tf.reduce_mean(state, axis=0, keepdims=True)

    @tf.function(input_signature=[tf.TensorSpec((None, 3))], autograph=False)
    def solve(state):
        return solver.solve(mean, solvers.SolveRequest(state)).value

    with pytest.raises(tf.errors.InvalidArgumentError):
        solve(tf.ones((4, 3)))
