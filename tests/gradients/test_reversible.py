"""The reversible gradient against back-propagation through the same steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.solvers import FixedPointIteration, SolveRequest
from deq_keras.testing.problems import relative_error
from tests.gradients.cases import BATCH, FEATURES, Case
from tests.layers.cells import TanhCell, TwoScaleCell
from tests.regimes import slow


class Kernel(solvers.FixedPointFunction):
    """f(z, u) = tanh(z W + u), with W as the variable of f."""

    variables = ()

    def __init__(self, kernel):
        self.variables = [keras.Variable(kernel, dtype=kernel.dtype)]

    def __call__(self, state, injection):
        return tf.tanh(tf.matmul(state, self.variables[0].value) + injection)


def _case(dtype):
    case = Case(dtype)
    start = tf.constant(
        np.random.RandomState(1).normal(size=(BATCH, FEATURES)) * 0.1, dtype
    )
    injection = tf.matmul(case.inputs, case.projection)
    return Kernel(0.7 * case.kernel.numpy()), injection, start


def _gradients(gradient, function, injection, start, solver):
    """The output, and the gradients for kernel, injection and start."""
    kernel = function.variables[0].value
    with tf.GradientTape() as tape:
        tape.watch([injection, start])
        problem = solvers.FixedPointProblem(function, injection)
        found = gradient.solve(problem, SolveRequest(start), solver)
        loss = tf.reduce_sum(found.value**3)
    return found.value, *tape.gradient(loss, [kernel, injection, start])


def _by_hand(beta, num_steps, function, injection, start):
    """The same through steps that are recorded; each sample has its own number."""
    kernel = function.variables[0].value
    with tf.GradientTape() as tape:
        tape.watch([injection, start])
        y = z = start
        for n in range(np.max(num_steps)):
            is_active = tf.reshape(n < tf.constant(num_steps), (-1, 1))
            y_next = (1.0 - beta) * y + beta * function(z, injection)
            z_next = (1.0 - beta) * z + beta * function(y_next, injection)
            y, z = tf.where(is_active, y_next, y), tf.where(is_active, z_next, z)
        loss = tf.reduce_sum(z**3)
    return z, *tape.gradient(loss, [kernel, injection, start])


def _error(actual, expected):
    pairs = zip(actual, expected, strict=True)
    return max(relative_error(one, two) for one, two in pairs)


@pytest.mark.parametrize(
    "dtype, tolerance, regime",
    [
        slow("float32", 1e-6, "graph"),
        ("float32", 1e-6, "xla"),
        ("float64", 1e-12, "eager"),
    ],
    indirect=["regime"],
)
@pytest.mark.usefixtures("full_float32")
def test_equals_recorded_steps(dtype, tolerance, regime):
    case = _case(dtype)
    solver = FixedPointIteration(65, tol=None)
    gradient = gradients.ReversibleGradient(beta=0.8)
    run = regime(lambda u, start: _gradients(gradient, case[0], u, start, solver))
    actual, expected = run(*case[1:]), _by_hand(0.8, [32] * BATCH, *case)
    if regime.name == "xla":
        tolerance *= 3  # Its tanh differs in the last bits from the tanh of the steps.
    assert _error(actual[:3], expected[:3]) < tolerance
    # A product of 64 Jacobians, each rounded, of the order of 1e-18.
    assert _error(actual[3:], expected[3:]) < 10 * tolerance


def test_rounding_grows_without_stored_pairs():
    """The control: what the stored pairs are for."""
    case = _case("float32")
    solver = FixedPointIteration(33, tol=None)
    expected = _by_hand(0.9, [16] * BATCH, *case)
    for interval, has_error in ((None, False), (100, True)):
        gradient = gradients.ReversibleGradient(0.9, interval)
        actual = _gradients(gradient, *case, solver)
        assert (_error(actual, expected) > 1e-4) == has_error
        assert _error(actual[:1], expected[:1]) < 1e-6


@pytest.mark.parametrize("regime", ["graph", slow("xla")], indirect=True)
def test_samples_stop_independently(regime):
    kernel, injection, start = _case("float64")
    scale = tf.constant([[0.0], [0.01], [2.0]], tf.float64)
    injection, start = injection * scale, start * scale
    solver = FixedPointIteration(41, tol=1e-2)
    gradient = gradients.ReversibleGradient(0.5)

    def run(injection, start):
        problem = solvers.FixedPointProblem(kernel, injection)
        found = gradient.solve(problem, SolveRequest(start), solver)
        actual = _gradients(gradient, kernel, injection, start, solver)
        return actual, found.solution

    actual, solution = regime(run)(injection, start)
    np.testing.assert_array_equal(solution.status, solvers.CONVERGED)
    steps = (solution.num_evaluations.numpy() - 1) // 2
    assert steps[0] == 0 and 0 < steps[1] != steps[2] > 0
    assert solution.batch_evaluations == 2 * steps.max() + 1
    assert np.all(solution.residual <= 1e-2)
    expected = _by_hand(0.5, steps, kernel, injection, start)
    assert _error(actual, expected) < 1e-12
    alone = _gradients(gradient, kernel, injection[1:2], start[1:2], solver)
    for together, one in zip(actual[2:], alone[2:], strict=True):
        assert relative_error(together[1:2], one) < 1e-12


def _layer_gradients(deq, inputs):
    with tf.GradientTape() as tape:
        value = deq(inputs, training=True)
        loss = sum(tf.reduce_sum(tf.square(leaf)) for leaf in tf.nest.flatten(value))
    return tape.gradient(loss, [weight.value for weight in deq.trainable_weights])


def test_nest_equals_the_implicit_gradient():
    keras.config.set_dtype_policy("float64")
    inputs = {"x": tf.ones((2, 3), "float64"), "y": tf.zeros((2, 3), "float64")}
    slopes = []
    for gradient in ("reversible", "implicit"):
        solver = FixedPointIteration(200, tol=1e-13)
        deq = layers.DEQ(TwoScaleCell(4), solver, gradient, None)
        deq(inputs)
        slopes.append(_layer_gradients(deq, inputs))
    assert _error(*slopes) < 1e-10


def test_mixed_precision_keeps_the_pair_in_float32():
    """Only bfloat16 rounds, and its error does not grow with the number of steps."""
    inputs = tf.constant(np.random.RandomState(0).normal(size=(5, 3)), "float32")
    slopes = []
    for policy in ("float32", "mixed_bfloat16"):
        deq = layers.DEQ(
            TanhCell(6, dtype=policy),
            FixedPointIteration(21, tol=None),
            "reversible",
            None,
        )
        deq(inputs)
        slopes.append(_layer_gradients(deq, inputs))
    assert all(slope.dtype == "float32" for slope in slopes[1])
    assert _error(slopes[1], slopes[0]) < 3e-2


@pytest.mark.parametrize(
    "solver",
    [solvers.Anderson(), FixedPointIteration(patience=3), FixedPointIteration(2)],
    ids=str,
)
def test_other_solvers_raise(solver):
    deq = layers.DEQ(TanhCell(6), solver, "reversible")
    with pytest.raises(ValueError, match="Received"):
        deq(tf.ones((2, 3)), training=True)


def test_captured_variable_raises():
    """Its gradient would be lost."""
    variable = tf.Variable(0.5)
    problem = solvers.FixedPointProblem(lambda z, u: variable * z + u, tf.ones((1, 1)))
    with pytest.raises(TypeError, match="weights"):
        gradients.ReversibleGradient().solve(
            problem, SolveRequest(tf.zeros((1, 1))), FixedPointIteration(5, tol=None)
        )
