"""Back-propagation through the solver."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.solvers import SolveRequest
from deq_keras.testing.problems import relative_error
from tests import harness
from tests.gradients.cases import FEATURES, START, Case
from tests.regimes import XLA_IS_SLOW, slow


@pytest.mark.parametrize(
    "cls, regime",
    [
        (solvers.FixedPointIteration, "graph"),
        (solvers.Anderson, "eager"),
        (solvers.Broyden, "eager"),
        slow(solvers.Anderson, "xla"),
    ],
    indirect=["regime"],
)
def test_equals_finite_differences_through_every_solver(cls, regime):
    """Exact for what was computed, converged or not."""
    case = Case("float64")
    solver = cls(max_iter=5, tol=None)
    gradient = gradients.UnrolledGradient()

    def loss(bias):
        equilibrium = gradient.solve(
            solvers.FixedPointProblem(
                lambda z, u: case.apply(z, u, case.kernel, bias),
                tf.matmul(case.inputs, case.projection),
            ),
            START,
            solver,
        )
        return tf.reduce_sum(equilibrium.value * case.cotangent)

    @regime
    def gradient_of(bias):
        return harness.gradients(lambda: loss(bias), bias)

    step = 1e-6
    differences = [
        (loss(case.bias + shift) - loss(case.bias - shift)) / (2 * step)
        for shift in step * np.eye(FEATURES)
    ]
    assert relative_error(gradient_of(case.bias), np.array(differences)) < 1e-6


def test_initial_state_has_a_gradient():
    start = tf.ones((1, 1))
    with tf.GradientTape() as tape:
        tape.watch(start)
        found = gradients.UnrolledGradient().solve(
            solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, tf.ones((1, 1))),
            SolveRequest(start),
            solvers.FixedPointIteration(max_iter=3, tol=None),
        )
    np.testing.assert_allclose(tape.gradient(found.value, start), 0.125)


@pytest.mark.parametrize(
    "solver, regime",
    [
        (solvers.Anderson, "eager"),
        (solvers.Broyden, "graph"),
        slow(solvers.Broyden, "xla"),
    ],
    indirect=["regime"],
)
def test_checkpoints_do_not_change_the_gradient(solver, regime):
    """Whatever the memory of the solver; one sample stops before the others."""
    kernel = keras.Variable(Case("float64").kernel.numpy(), dtype="float64")
    scale = np.array([[1.0], [1e-3], [0.3]])
    inputs = tf.constant(scale * np.random.RandomState(0).normal(size=(3, FEATURES)))

    class Function(solvers.FixedPointFunction):
        variables = (kernel,)

        def __call__(self, state, injection):
            return tf.tanh(tf.matmul(state, kernel.value) + injection)

    def compute(inputs, gradient):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            found = gradient.solve(
                solvers.FixedPointProblem(Function(), inputs),
                SolveRequest(tf.zeros_like(inputs)),
                solver(max_iter=5, tol=1e-5),
            )
            loss = tf.reduce_sum(found.value**3)
        return found.value, *tape.gradient(loss, [inputs, kernel.value])

    plain, stored = (
        regime(lambda inputs, c=c: compute(inputs, gradients.UnrolledGradient(c)))
        for c in (None, 2)
    )
    for one, two in zip(stored(inputs), plain(inputs), strict=True):
        assert np.any(two)
        assert relative_error(one, two) < 1e-12


def test_checkpoints_need_a_known_budget():
    request = SolveRequest(tf.zeros((1, 1)), max_iter=tf.constant(5))
    with pytest.raises(ValueError, match="integer `max_iter`"):
        gradients.UnrolledGradient(2).solve(
            solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, tf.ones((1, 1))),
            request,
            solvers.FixedPointIteration(),
        )


@XLA_IS_SLOW
def test_a_sample_that_starts_at_its_solution(regime):
    """The derivative of a norm at zero is not finite; nothing may depend on it."""

    @regime
    def gradient(u):
        with tf.GradientTape() as tape:
            tape.watch(u)
            found = gradients.UnrolledGradient().solve(
                solvers.FixedPointProblem(lambda z, u: tf.tanh(0.5 * z + u), u),
                SolveRequest(tf.zeros_like(u)),
                solvers.FixedPointIteration(max_iter=4, tol=1e-6),
            )
        return tape.gradient(found.value, u)

    slopes = gradient(tf.constant([[0.0], [0.3]], tf.float64))
    assert np.all(np.isfinite(slopes))
    np.testing.assert_allclose(slopes[0], 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    "solver",
    [
        *map(slow, [solvers.FixedPointIteration(8), solvers.Aitken(8)]),
        slow(solvers.Anderson(8)),
        solvers.Anderson(8, history=2, mixing=0.5),
        solvers.Broyden(8),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_a_sample_that_starts_at_its_equilibrium_changes_no_gradient(solver):
    keras.config.set_dtype_policy("float64")  # Other rows change TensorFloat-32's.
    deq = layers.DEQ(layers.DenseCell(5), solver, "unrolled", None, seed=0)
    inputs = np.random.RandomState(0).normal(size=(4, 3))
    deq(inputs)

    def slopes(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(inputs, training=True) ** 2)
        return tape.gradient(loss, deq.trainable_variables)

    expected = slopes(inputs)
    for one, other in zip(slopes(np.pad(inputs, ((0, 1), (0, 0)))), expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@XLA_IS_SLOW
@pytest.mark.parametrize("tol", [None, 1e-6])
def test_residuals_that_are_rounding_errors_have_finite_derivatives(tol, regime):
    """In float32, their squares are near the smallest numbers. With a tolerance, a
    sample that has converged keeps its state, and others go on."""
    solver = solvers.Anderson(tol=tol)
    deq = layers.DEQ(layers.DenseCell(4), solver, "unrolled", None, seed=1)
    inputs = np.random.RandomState(0).normal(size=(8, 3)).astype("float32")
    deq(inputs)

    def compute():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(deq(inputs, training=True) ** 2)
        return tape.gradient(loss, deq.trainable_variables)

    slopes = regime(compute)()
    assert all(np.isfinite(slope).all() for slope in slopes)
    if tol is not None:
        deq.solver, deq.gradient = solvers.Anderson(60, 1e-7), "implicit"
        for slope, expected in zip(slopes, regime(compute)(), strict=True):
            np.testing.assert_allclose(slope, expected, rtol=0.02, atol=0.02)
