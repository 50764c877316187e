"""Samples of a batch do not know of one another."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers


def _batch(num_samples, dtype="float32", size=8):
    """Problems of different difficulty: f(z) = tanh(scale_b z W) + x_b."""
    random = np.random.RandomState(11)
    kernel = tf.constant(random.normal(size=(size, size)) * 0.4, dtype)
    scale = tf.constant(np.linspace(0.05, 0.9, num_samples)[:, None], dtype)
    inputs = tf.constant(random.normal(size=(num_samples, size)), dtype)
    return kernel, scale, inputs


def _apply(kernel, scale, inputs):
    # A sum over an explicit axis rounds alike for any number of rows; a matrix product
    # need not, and that would be the cell's doing.
    def function(z):
        product = tf.reduce_sum(z[:, :, None] * kernel[None], axis=1)  # (B, D)
        return tf.tanh(scale * product) + inputs

    return function


def _solve(solver, kernel, scale, inputs, regime):
    @regime
    def solve(scale, inputs):
        return solver.solve(
            _apply(kernel, scale, inputs), solvers.SolveRequest(tf.zeros_like(inputs))
        )

    return solve(scale, inputs)


def _assert_same(batched, alone, i):
    for field in ("value", "point", "residual", "status", "num_evaluations"):
        np.testing.assert_array_equal(
            getattr(batched, field)[i], getattr(alone, field)[0], err_msg=field
        )


def test_samples_need_different_numbers_of_evaluations(solver_class):
    kernel, scale, inputs = _batch(4)
    solution = solver_class(max_iter=16, tol=1e-3).solve(
        _apply(kernel, scale, inputs), solvers.SolveRequest(tf.zeros_like(inputs))
    )
    counts = solution.num_evaluations.numpy()
    assert len(set(counts)) >= 3
    assert solution.batch_evaluations == counts.max()
    np.testing.assert_array_equal(np.sum(np.isfinite(solution.trace), axis=0), counts)


def test_a_sample_alone_equals_the_sample_in_a_batch(solver_class, exact_regime):
    kernel, scale, inputs = _batch(4)
    solver = solver_class(max_iter=16, tol=1e-3)
    batched = _solve(solver, kernel, scale, inputs, exact_regime)
    for i in range(4):
        row = slice(i, i + 1)
        alone = _solve(solver, kernel, scale[row], inputs[row], exact_regime)
        _assert_same(batched, alone, i)


def test_a_sample_alone_nearly_equals_the_sample_in_a_batch_under_xla(solver_class):
    kernel, scale, inputs = _batch(4)
    solver = solver_class(max_iter=12, tol=None)

    def xla(function):
        return tf.function(function, jit_compile=True)

    batched = _solve(solver, kernel, scale, inputs, xla)
    for i in (0, 3):
        row = slice(i, i + 1)
        alone = _solve(solver, kernel, scale[row], inputs[row], xla)
        np.testing.assert_allclose(batched.value[i], alone.value[0], rtol=0, atol=3e-7)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_non_finite_sample_leaves_the_others_alone(
    solver_class, exact_regime, poison
):
    kernel, scale, inputs = _batch(4)
    solver = solver_class(max_iter=16, tol=1e-3)
    clean = _solve(solver, kernel, scale, inputs, exact_regime)
    poisoned = inputs.numpy()
    poisoned[2, 0] = poison
    mixed = _solve(solver, kernel, scale, tf.constant(poisoned), exact_regime)
    for i in (0, 1, 3):
        for field in ("value", "point", "residual", "status", "num_evaluations"):
            np.testing.assert_array_equal(
                getattr(mixed, field)[i], getattr(clean, field)[i], err_msg=field
            )
    assert mixed.status[2] == solvers.DIVERGED
    assert mixed.num_evaluations[2] == 1
    assert np.isinf(mixed.residual[2])
    np.testing.assert_array_equal(mixed.point[2], 0.0)
    np.testing.assert_array_equal(mixed.value[2], 0.0)


def test_a_sample_that_turns_non_finite_keeps_its_best_iterate(solver_class, regime):
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


def test_expansion_is_not_divergence():
    """f(z) = 1.1 z + 1 never stops growing, but its relative residual is finite."""
    solver = solvers.FixedPointIteration(max_iter=20, tol=1e-6)
    solution = solver.solve(
        lambda z: 1.1 * z + 1.0, solvers.SolveRequest(tf.ones((2, 1)))
    )
    np.testing.assert_array_equal(solution.status, solvers.MAX_ITER)
    np.testing.assert_array_equal(solution.residual, np.nanmin(solution.trace, axis=0))


def test_the_dynamic_batch_and_an_empty_one(solver_class):
    solver = solver_class(max_iter=20, tol=1e-4)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
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


def test_a_norm_that_overflows_is_no_convergence(solver_class):
    """|f(z)|^2 overflows in float32 while f(z) and |g(z)| are finite; the relative
    residual must not come out as zero."""
    solver = solver_class(max_iter=4, tol=1e-3)
    solution = solver.solve(
        lambda z: z + 1e15, solvers.SolveRequest(tf.fill((1, 2), 3e19))
    )
    assert solution.status[0] == solvers.DIVERGED
