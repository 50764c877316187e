"""Noise, and damping with patience."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests.layers.cells import TanhCell
from tests.regimes import XLA_IS_SLOW

SEED = tf.constant([1, 2])
ZEROS = tf.zeros((2000, 3))


def _solve(solver, seed=SEED, function=lambda z: 0.5 * z, start=ZEROS):
    return solver.solve(function, solvers.SolveRequest(start, seed=seed))


def test_noise_is_added_after_each_step(regime):
    """z_k = 0.5 z_{k-1} + noise e_k: after two steps a variance of 1 + 1/4."""
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    points = regime(lambda: _solve(solver))().point
    assert abs(np.mean(points)) < 0.005
    assert abs(np.std(points) - 0.1 * np.sqrt(1.25)) < 0.003


def test_noise_follows_from_the_seed_sample_and_step():
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    one, again, other = (
        _solve(solver, seed).point for seed in (SEED, SEED, tf.constant([5, 5]))
    )
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)
    few = _solve(solver, start=ZEROS[:7]).point
    np.testing.assert_array_equal(few, one[:7])
    once = solvers.FixedPointIteration(max_iter=2, tol=None, noise=0.1)
    first = _solve(once).point
    assert np.any(np.abs(one - 0.5 * first - first) > 1e-3)  # Not the same draw again.


def test_without_a_seed_there_is_no_noise():
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    np.testing.assert_array_equal(_solve(solver, None).point, 0.0)


def test_noise_of_a_layer_is_that_of_training():
    solver = solvers.FixedPointIteration(max_iter=4, tol=None, noise=0.1)
    for gradient in ("neumann", "unrolled", gradients.TruncatedGradient(2, 2)):
        deq = layers.DEQ(TanhCell(3), solver, gradient, regularizer=None, seed=1)
        inputs = np.ones((2, 4), "float32")
        values = [deq(inputs, training=True).numpy() for _ in range(2)]
        assert np.all(values[0] != values[1])
        quiet = [deq(inputs, training=False).numpy() for _ in range(2)]
        np.testing.assert_array_equal(*quiet)
        np.testing.assert_allclose(values[0], quiet[0], atol=1.0)
        assert np.any(
            deq.solve(inputs, solvers.SolveRequest(seed=3)).value
            != deq.solve(inputs).value
        )


@XLA_IS_SLOW
def test_patience_damps_an_oscillation(regime):
    """f(z) = -1.1 z diverges undamped, and converges once damped below 2 / 2.1."""
    start = tf.ones((2, 3))
    plain = solvers.FixedPointIteration(200, 1e-6, "abs")
    assert np.all(_solve(plain, None, lambda z: -1.1 * z, start).status != 0)
    patient = solvers.FixedPointIteration(200, 1e-6, "abs", patience=3, factor=0.9)
    solution = regime(lambda: _solve(patient, None, lambda z: -1.1 * z, start))()
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)


def test_patience_by_hand():
    """Each sample's damping falls when its residual has stalled, and only then."""
    factors = np.array([-1.1, 0.5])
    solver = solvers.FixedPointIteration(9, None, "abs", patience=2, factor=0.5)
    start = tf.constant([[1.0], [1.0]], tf.float64)
    actual = _solve(solver, None, lambda z: z * factors[:, None], start)
    for factor, point in zip(factors, actual.point.numpy()[:, 0], strict=True):
        z, damping, smallest, num_stalled = 1.0, 1.0, np.inf, 0
        for _ in range(8):
            residual = factor * z - z
            if residual**2 < smallest:
                smallest, num_stalled = residual**2, 0
            else:
                num_stalled += 1
            if num_stalled >= 2:
                damping, num_stalled = 0.5 * damping, 0
            z += damping * residual
        np.testing.assert_allclose(point, z, rtol=1e-12)


def test_where_nothing_stalls_patience_changes_nothing():
    patient = solvers.FixedPointIteration(30, 1e-4, patience=4)
    plain = solvers.FixedPointIteration(30, 1e-4)
    start = tf.ones((2, 3))
    one, two = (
        _solve(solver, None, lambda z: 0.5 * tf.sin(z) + 1.0, start)
        for solver in (patient, plain)
    )
    np.testing.assert_array_equal(one.num_evaluations, two.num_evaluations)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-6)


@pytest.mark.parametrize("noise, tol", [(0.1, 0.1), (0.01, 1e-3)])
def test_noise_that_puts_the_tolerance_out_of_reach_is_refused(noise, tol):
    with pytest.raises(ValueError, match=f"out of reach.*noise={noise}, tol={tol}"):
        solvers.FixedPointIteration(noise=noise, tol=tol)
    solvers.FixedPointIteration(noise=noise, tol=2 * noise)
