"""Peaceman-Rachford and forward-backward splitting."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import solvers
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell
from deq_keras.testing.problems import dense_adjoint, dense_jacobians, relative_error
from tests import harness
from tests.regimes import slow

SPLITTINGS = {
    "peaceman_rachford": functools.partial(
        solvers.PeacemanRachford, alpha=0.4, max_iter=200
    ),
    "forward_backward": functools.partial(
        solvers.ForwardBackward, alpha=0.05, max_iter=1000
    ),
}


def _inputs(batch=4, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=(batch, 3)))


def _layer(solver, activation="relu", m=0.5, **kwargs):
    """A layer whose f expands: plain iteration diverges."""
    cell = MonotoneDenseCell(5, m, activation, dtype="float64")
    layer = DEQ(cell, solver=solver, dtype="float64", **kwargs)
    cell.inject(_inputs())
    random = np.random.default_rng(3)
    for weight in cell.trainable_weights:
        weight.assign(random.normal(size=weight.shape))
    return layer


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation, alpha",
    [("relu", 0.05), ("sigmoid", 2.0), ("softplus", 0.5), ("tanh", 1.0)],
)
def test_every_step_size_finds_the_same_point(activation, alpha):
    solver = solvers.PeacemanRachford(alpha, max_iter=500, tol=1e-12)
    layer, inputs = _layer(solver, activation), _inputs()
    solution = tf.function(layer.solve, autograph=False)(inputs)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    again = layer.cell(solution.value, layer.inject(inputs))
    np.testing.assert_allclose(again, solution.value, atol=1e-9)
    assert np.abs(solution.value).max() > 0.1


def _check_gradient(splitting, activation, regime):
    layer = _layer(splitting(tol=1e-9, max_iter=3000), activation)
    inputs, cotangent = _inputs(), np.random.default_rng(7).normal(size=(4, 5))
    injection = layer.inject(inputs)
    point = layer.solve(inputs).value
    jacobians = dense_jacobians(lambda z: layer.cell(z, injection), point)
    adjoint = dense_adjoint(jacobians, cotangent)
    expected = harness.gradients(
        lambda: layer.cell(point, layer.inject(inputs)), inputs, adjoint
    )

    def gradient(inputs):
        function = lambda: layer(inputs, training=True)  # noqa: E731
        return harness.gradients(function, inputs, tf.constant(cotangent))

    assert relative_error(regime(gradient)(inputs), expected) < 1e-6


@pytest.mark.parametrize(
    "name, activation, regime",
    [
        ("peaceman_rachford", "tanh", "eager"),
        slow("peaceman_rachford", "relu", "graph"),
        slow("peaceman_rachford", "softplus", "xla"),
        slow("forward_backward", "sigmoid", "graph"),
    ],
    indirect=["regime"],
)
def test_adjoints_by_the_same_splitting(name, activation, regime):
    _check_gradient(SPLITTINGS[name], activation, regime)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITTINGS)
def test_solve_from_an_equilibrium_stays(name):
    """Also where the step size is not 1."""
    layer = _layer(SPLITTINGS[name](tol=1e-8, alpha=0.1), "sigmoid", 2.0)
    inputs = _inputs()
    first = tf.function(layer.solve, autograph=False)(inputs)
    again = layer.solve(inputs, solvers.SolveRequest(first.value, tol=1e-5))
    np.testing.assert_array_equal(again.num_evaluations, 1)


def test_the_budget_is_kept():
    solution = _layer("peaceman_rachford").solve(
        _inputs(), solvers.SolveRequest(max_iter=2, tol=1e-9)
    )
    np.testing.assert_array_equal(solution.num_evaluations, 2)
    np.testing.assert_array_equal(solution.status, solvers.MAX_ITER)


def test_failed_sample_affects_no_other():
    layer = _layer("peaceman_rachford")
    inputs = _inputs().numpy()
    expected = layer.solve(tf.constant(inputs)).value.numpy()
    inputs[1] = np.nan
    with tf.GradientTape() as tape:
        value = layer(tf.constant(inputs), training=True)
        loss = tf.reduce_sum(value)
    np.testing.assert_array_equal(value[1], 0.0)
    np.testing.assert_allclose(np.delete(value, 1, 0), np.delete(expected, 1, 0), 1e-9)
    for gradient in tape.gradient(loss, layer.cell.trainable_variables):
        assert np.all(np.isfinite(gradient))


def test_non_finite_weights_show():
    layer = _layer("peaceman_rachford")
    layer.cell.projection.bias.assign(np.full(5, np.inf))
    solution = layer.solve(_inputs())
    np.testing.assert_array_equal(solution.status, solvers.DIVERGED)
    np.testing.assert_array_equal(solution.value, 0.0)
    assert np.all(np.isnan(layer(_inputs())))


def test_cell_without_a_splitting_raises():
    layer = DEQ(DenseCell(3), solver="peaceman_rachford", gradient="implicit")
    with pytest.raises(ValueError, match="PeacemanRachford.*Received"):
        layer(np.ones((2, 3), "float32"))
    with pytest.raises(ValueError, match="ForwardBackward.*Received"):
        solvers.ForwardBackward().solve(lambda z: z, solvers.SolveRequest([[1.0]]))


def test_the_step_size_is_tuned():
    layer, inputs = _layer("peaceman_rachford"), _inputs()
    tuned = layer.cell.tuned(layer.solver, inputs)
    assert isinstance(tuned, solvers.PeacemanRachford)
    assert np.log2(tuned.alpha) % 1 == 0

    def mean(alpha):
        layer.solver = solvers.PeacemanRachford(alpha)
        return np.mean(layer.solve(inputs).num_evaluations)

    assert mean(tuned.alpha) <= min(mean(2 * tuned.alpha), mean(tuned.alpha / 2), 50)


def test_a_step_size_that_cannot_be_tuned_stays():
    layer = _layer("peaceman_rachford")
    solver = solvers.PeacemanRachford(0.3, max_iter=1)
    assert layer.cell.tuned(solver, _inputs()) is solver
