"""Noise, and damping with patience."""

import numpy as np
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests.layers.cells import TanhCell
from tests.regimes import XLA_IS_SLOW

SEED = tf.constant([1, 2])
ZEROS = tf.zeros((2000, 3))


def _solve(solver, seed=SEED, function=lambda z: 0.5 * z, start=ZEROS):
    return solver.solve(function, solvers.SolveRequest(start, seed=seed))


@XLA_IS_SLOW
def test_noise_is_added_after_each_step(regime):
    """z_k = 0.5 z_{k-1} + noise e_k: after two steps a variance of 1 + 1/4."""
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    points = regime(lambda: _solve(solver))().point
    assert abs(np.mean(points)) < 0.005
    assert abs(np.std(points) - 0.1 * np.sqrt(1.25)) < 0.003


def test_noise_depends_on_seed_sample_and_step():
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
    assert np.any(np.abs(one - 0.5 * first - first) > 1e-3)  # The draws differ.


def test_no_noise_without_a_seed():
    solver = solvers.FixedPointIteration(max_iter=3, tol=None, noise=0.1)
    np.testing.assert_array_equal(_solve(solver, None).point, 0.0)


def test_layer_adds_noise_only_in_training():
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


def test_patience_damps_an_oscillation():
    """f(z) = -1.1 z diverges undamped, and converges once damped below 2 / 2.1."""
    start = tf.ones((2, 3))
    plain = solvers.FixedPointIteration(80, 1e-3, "abs")
    assert np.all(_solve(plain, None, lambda z: -1.1 * z, start).status != 0)
    patient = solvers.FixedPointIteration(80, 1e-3, "abs", patience=3, factor=0.9)
    solution = _solve(patient, None, lambda z: -1.1 * z, start)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)


def test_patience_damps_only_stalled_samples():
    """The third step of -1.1 z is halved: 1, -1.1, 1.21, 1.21 - 2.541 / 2."""
    factors = tf.constant([[-1.1], [0.5]], tf.float64)
    solver = solvers.FixedPointIteration(4, None, "abs", patience=2, factor=0.5)
    solution = _solve(solver, None, lambda z: z * factors, tf.ones_like(factors))
    np.testing.assert_allclose(solution.point, [[-0.0605], [0.125]], rtol=1e-9)


def test_patience_changes_nothing_without_a_stall():
    patient = solvers.FixedPointIteration(30, 1e-4, patience=4)
    plain = solvers.FixedPointIteration(30, 1e-4)
    start = tf.ones((2, 3))
    one, two = (
        _solve(solver, None, lambda z: 0.5 * tf.sin(z) + 1.0, start)
        for solver in (patient, plain)
    )
    np.testing.assert_array_equal(one.num_evaluations, two.num_evaluations)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-6)
