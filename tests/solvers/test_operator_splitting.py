"""Peaceman-Rachford and forward-backward splitting."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import proximal, solvers
from deq_keras.gradients import ImplicitGradient
from deq_keras.layers import DEQ, DenseCell, MonotoneDenseCell
from deq_keras.testing.problems import dense_adjoint, dense_jacobians, relative_error
from tests.regimes import slow

SPLITTINGS = {
    "peaceman_rachford": functools.partial(solvers.PeacemanRachford, max_iter=200),
    "forward_backward": functools.partial(
        solvers.ForwardBackward, alpha=0.05, max_iter=1000
    ),
}
ACTIVATIONS = ["relu", "sigmoid", "softplus", "tanh"]


@pytest.fixture(
    params=[
        "peaceman_rachford",
        slow("forward_backward"),
    ]
)
def splitting(request):
    """Each of the splittings in turn."""
    return SPLITTINGS[request.param]


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
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 2.0])
def test_every_step_size_finds_the_same_point(activation, alpha):
    solver = solvers.PeacemanRachford(alpha, max_iter=500, tol=1e-12)
    layer, inputs = _layer(solver, activation), _inputs()
    solution = tf.function(layer.solve, autograph=False)(inputs)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    again = layer.cell(solution.value, layer.inject(inputs))
    np.testing.assert_allclose(again, solution.value, atol=1e-9)
    assert np.abs(solution.value).max() > 0.1


@pytest.mark.slow
def test_plain_iteration_diverges_here():
    solution = _layer("fixed_point_iteration").solve(_inputs())
    assert np.min(solution.residual) > 0.5


def _check_gradient(splitting, activation, regime):
    layer = _layer(splitting(tol=1e-11, max_iter=3000), activation)
    inputs, cotangent = _inputs(), np.random.default_rng(7).normal(size=(4, 5))
    injection = layer.inject(inputs)
    point = layer.solve(inputs).value
    jacobians = dense_jacobians(lambda z: layer.cell(z, injection), point)
    adjoint = dense_adjoint(jacobians, cotangent)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = layer.cell(point, layer.inject(inputs))
    expected = tape.gradient(value, inputs, adjoint)

    def gradient(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = layer(inputs, training=True)
        return tape.gradient(value, inputs, tf.constant(cotangent))

    assert relative_error(regime(gradient)(inputs), expected) < 1e-6


def test_the_adjoint_by_the_same_splitting():
    _check_gradient(SPLITTINGS["peaceman_rachford"], "tanh", tf.function)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_adjoints_by_the_same_splitting(splitting, activation, regime):
    _check_gradient(splitting, activation, regime)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gradient", [ImplicitGradient(solvers.Anderson(100, 1e-9)), "unrolled"]
)
def test_other_gradients_agree(gradient):
    inputs = _inputs()

    def derivative(**kwargs):
        solver = solvers.PeacemanRachford(max_iter=200, tol=1e-10)
        layer = _layer(solver, "tanh", regularizer=None, **kwargs)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(inputs, training=True) ** 2)
        return tape.gradient(loss, layer.cell.symmetric.value)

    assert relative_error(derivative(gradient=gradient), derivative()) < 1e-5


@pytest.mark.slow
def test_samples_are_independent():
    layer = _layer(solvers.PeacemanRachford(tol=1e-3))
    inputs = _inputs(3)
    together = layer.solve(inputs)
    for i in range(len(inputs)):
        alone = layer.solve(inputs[i : i + 1])
        np.testing.assert_allclose(alone.value[0], together.value[i], atol=1e-13)
        assert alone.num_evaluations[0] == together.num_evaluations[i]
        trace = together.trace[:, i].numpy()
        count = together.num_evaluations[i]
        assert np.all(np.isfinite(trace[:count])) and np.all(np.isnan(trace[count:]))
        assert trace[count - 1] == together.residual[i] <= 1e-3


@pytest.mark.slow
def test_a_solve_that_starts_at_its_end_stays(splitting):
    """Also where the step size is not 1."""
    layer = _layer(splitting(tol=1e-8, alpha=0.1), "sigmoid", 2.0)
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


@pytest.mark.slow
def test_halting_looks_at_the_state():
    # Of tanh, iterates are larger than 1 and states are not.
    halting = solvers.UnchangedAnswer(lambda z: z < 1, patience=2)
    layer = _layer(solvers.PeacemanRachford(tol=None), "tanh")
    solution = layer.solve(_inputs(), solvers.SolveRequest(halting=halting))
    np.testing.assert_array_equal(solution.status, solvers.UNCHANGED)
    np.testing.assert_array_equal(solution.num_evaluations, 2)


def test_a_failing_sample_leaves_the_others_alone():
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


def test_weights_that_are_not_finite_show():
    layer = _layer("peaceman_rachford")
    layer.cell.projection.bias.assign(np.full(5, np.inf))
    solution = layer.solve(_inputs())
    np.testing.assert_array_equal(solution.status, solvers.DIVERGED)
    np.testing.assert_array_equal(solution.value, 0.0)
    assert np.all(np.isnan(layer(_inputs())))


def test_a_cell_without_parts_is_refused():
    layer = DEQ(DenseCell(3), solver="peaceman_rachford", gradient="implicit")
    with pytest.raises(ValueError, match="PeacemanRachford needs the parts.*monotone"):
        layer(np.ones((2, 3), "float32"))
    with pytest.raises(ValueError, match="ForwardBackward needs the parts"):
        solvers.ForwardBackward().solve(lambda z: z, solvers.SolveRequest([[1.0]]))


@pytest.mark.slow
def test_an_own_activation():
    class Identity(proximal.ProximalMap):
        def __call__(self, inputs):
            return inputs

        def derivative(self, inputs):
            return tf.ones_like(inputs)

        def proximal(self, inputs, alpha):
            return inputs

    layer = _layer(solvers.PeacemanRachford(tol=1e-9, max_iter=200), Identity(), m=2.0)
    inputs = _inputs()
    injection = layer.inject(inputs)
    kernel, bias = injection["operator"].numpy(), injection["bias"].numpy()
    expected = np.linalg.solve((np.eye(5) - kernel).T, bias.T).T
    found = tf.function(layer.solve, autograph=False)(inputs).value
    np.testing.assert_allclose(found, expected, atol=1e-7)


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
