"""Second derivatives of the layer, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from deq_keras import gradients, layers, solvers
from tests.layers.cells import FunctionCell
from tests.regimes import slow

SLOPE = 0.4
INPUTS = np.array([[0.3], [-0.7], [1.2]])


def _layer(gradient, solver=None):
    cell = FunctionCell(lambda z, u: tf.tanh(SLOPE * z + u), dtype="float64")
    solver = solver or solvers.FixedPointIteration(max_iter=60, tol=1e-13)
    return layers.DEQ(cell, solver, gradient, regularizer=None)


def _derivatives(deq, training):
    return _derivatives_at(deq, tf.constant(INPUTS), training)


def _derivatives_at(deq, inputs, training=True):
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            value = deq(inputs, training=training)
        first = inner.gradient(value, inputs)
    return value, first, outer.gradient(first, inputs)


def _exact(value):
    """dz/du = s / (1 - a s) with s = 1 - z^2, and its derivative."""
    s = 1 - value**2
    first = s / (1 - SLOPE * s)
    return first, -2 * value * first / (1 - SLOPE * s) ** 2


@pytest.mark.parametrize(
    "gradient, regime",
    [("unrolled", "eager"), (gradients.TruncatedGradient(60, 0), "graph")],
    ids=["unrolled", "truncated"],
    indirect=["regime"],
)
def test_second_derivatives_in_training(gradient, regime):
    deq = _layer(gradient)
    compute = regime(lambda: _derivatives(deq, training=True))
    value, first, second = (tensor.numpy() for tensor in compute())
    np.testing.assert_allclose(value, np.tanh(SLOPE * value + INPUTS), atol=1e-12)
    for actual, expected in zip((first, second), _exact(value), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


GMRES = gradients.ImplicitGradient(solvers.GMRES(40, 1e-14))
SERIES = gradients.NeumannGradient(80)


@pytest.mark.parametrize(
    "gradient, training, regime",
    [
        ("implicit", True, "eager"),
        ("implicit", False, "graph"),
        slow("implicit", True, "xla"),
        (GMRES, True, "graph"),
        (SERIES, True, "graph"),
        slow(SERIES, False, "eager"),
    ],
    ids=str,
    indirect=["regime"],
)
def test_second_derivatives_of_an_equilibrium(gradient, training, regime):
    deq = _layer(gradient, solvers.Anderson(60, 1e-15))
    compute = regime(lambda: _derivatives(deq, training))
    value, first, second = (tensor.numpy() for tensor in compute())
    for actual, expected in zip((first, second), _exact(value), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


class PairCell(layers.EquilibriumCell):
    """Two leaves that depend on each other, on the inputs, and on a weight."""

    def build(self, shape):
        random = np.random.default_rng(0)
        self.w = self.add_weight((3, 3), name="w")
        self.w.assign(0.4 * np.linalg.qr(random.normal(size=(3, 3)))[0])

    def initial_state(self, injection):
        zeros = ops.zeros_like(injection)
        return {"a": zeros, "b": zeros[..., :2]}

    def call(self, state, injection):
        a = ops.tanh(ops.matmul(state["a"], self.w) + injection)
        both = a[..., :2] + 0.3 * state["b"] ** 2
        return {"a": a + 0.2 * ops.sum(state["b"], -1, keepdims=True), "b": 0.4 * both}


def _curvature(gradient, solver, regime, mask):
    """Returns gradients, and products of the Hessian, for a weight and the inputs."""
    deq = layers.DEQ(PairCell(dtype="float64"), solver, gradient, regularizer=None)
    random = np.random.default_rng(1)
    inputs, direction = map(tf.constant, random.normal(size=(2, 2, 4, 3)))
    deq(inputs)
    weight, of_weight = deq.cell.w.value, tf.constant(random.normal(size=(3, 3)))

    def compute():
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                value = deq(inputs, mask=mask, training=True)
                loss = tf.reduce_sum(value["a"] ** 3) + tf.reduce_sum(value["b"] ** 2)
            slopes = inner.gradient(loss, [weight, inputs])
            along = tf.reduce_sum(slopes[0] * of_weight)
            along += tf.reduce_sum(slopes[1] * direction)
        return *slopes, *outer.gradient(along, [weight, inputs])

    return regime(compute)()


@pytest.mark.parametrize(
    "gradient, is_padded, regime",
    [
        slow("implicit", True, "graph"),
        (SERIES, True, "eager"),
        slow("implicit", False, "eager"),
        slow("implicit", False, "xla"),
        slow(SERIES, True, "graph"),
    ],
    ids=str,
    indirect=["regime"],
)
def test_nested_states_equal_unrolled_steps(gradient, is_padded, regime):
    mask = np.arange(4) < np.array([[2], [4]]) if is_padded else None
    steps = solvers.FixedPointIteration(120, 1e-15)
    expected = _curvature("unrolled", steps, lambda compute: compute, mask)
    actual = _curvature(gradient, solvers.Anderson(80, 1e-14), regime, mask)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
        assert np.abs(other).max() > 1e-2


def test_hessian_by_a_vectorized_jacobian():
    deq = _layer("implicit", solvers.Anderson(60, 1e-15))
    inputs = tf.constant(INPUTS)
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            value = deq(inputs, training=True)
        first = inner.gradient(value, inputs)
    hessian = outer.jacobian(first, inputs)[:, 0, :, 0]
    expected = np.diag(_exact(value.numpy())[1][:, 0])
    np.testing.assert_allclose(hessian, expected, rtol=1e-9, atol=1e-12)


def test_third_derivatives_raise():
    deq, inputs = _layer("implicit"), tf.constant(INPUTS)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        _, _, second = _derivatives_at(deq, inputs)
    with pytest.raises(NotImplementedError, match="third.*UnrolledGradient"):
        tape.gradient(second, inputs)


# In a function, TensorFlow differentiates a loop that reads such a tensor as it traces.
@pytest.mark.parametrize("exact_regime", ["eager", slow("graph")], indirect=True)
def test_other_tensors_have_first_derivatives_under_a_persistent_tape(exact_regime):
    """z = k z + u has dz/dk = u / (1 - k)^2, also if f captures k."""
    inputs, variable = tf.constant(INPUTS), tf.Variable(0.5, dtype="float64")
    gradient, solver = gradients.ImplicitGradient(), solvers.Anderson(60, 1e-14)

    def compute(twice=False):
        kept = tf.constant(0.4, "float64")
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([inputs, kept])
            problem = solvers.FixedPointProblem(
                lambda z, u: kept * variable * z + u, inputs
            )
            request = solvers.SolveRequest(tf.zeros_like(inputs))
            value = gradient.solve(problem, request, solver).value
            first = tape.gradient(value, [kept, variable]) if twice else None
        if twice:
            return tape.gradient(first[0], kept)
        return tape.gradient(value, [kept, variable])

    total = INPUTS.sum() / (1 - 0.2) ** 2
    of_kept, of_variable = exact_regime(compute)()
    np.testing.assert_allclose([of_kept, of_variable], [0.5 * total, 0.4 * total])
    with pytest.raises(NotImplementedError, match="neither a weight"):
        exact_regime(lambda: compute(twice=True))()


@pytest.mark.parametrize("gradient", ["implicit", "neumann"])
def test_first_derivatives_under_a_persistent_tape(gradient):
    """With a penalty, whose second derivatives are refused."""
    cell = layers.DenseCell(3, dtype="float64")
    deq = layers.DEQ(cell, "anderson", gradient, "jacobian", seed=0)
    deq(INPUTS)
    slopes = []
    for persistent in (False, True):
        deq.seed_generator.state.assign([0, 0])
        with tf.GradientTape(persistent=persistent) as tape:
            squares = tf.reduce_sum(deq(INPUTS, training=True) ** 2)
            loss = squares + tf.cast(sum(deq.losses), squares.dtype)
        slopes.append(tape.gradient(loss, deq.trainable_variables))
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_missing_second_derivatives_raise():
    with pytest.raises(NotImplementedError, match="Reversible.*UnrolledGradient"):
        _derivatives(_layer("reversible"), training=True)


def test_tapes_around_a_function_raise():
    deq, inputs = _layer("implicit"), tf.constant(INPUTS)
    call = tf.function(lambda inputs: deq(inputs, training=True), autograph=False)
    with (
        pytest.raises(NotImplementedError, match="both tapes within the function"),
        tf.GradientTape() as outer,
    ):
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            value = call(inputs)
        outer.gradient(inner.gradient(value, inputs), inputs)


def test_a_splitting_has_no_second_derivative():
    deq = layers.DEQ(layers.MonotoneDenseCell(3), gradient="implicit")
    with pytest.raises(NotImplementedError, match="PeacemanRachford.*gmres"):
        _derivatives(deq, training=False)


@pytest.mark.parametrize(
    "gradient, training, name, regime",
    [
        (
            gradients.TruncatedGradient(1, 60, free_fraction=1.0, free_noise=0.0),
            True,
            "TruncatedGradient",
            "graph",
        ),
        (gradients.PhantomGradient(1, 1.0), True, "PhantomGradient", "eager"),
        (gradients.TruncatedGradient(1, 0), False, "TruncatedGradient", "eager"),
    ],
    ids=["truncated", "phantom", "inference"],
    indirect=["regime"],
)
def test_second_derivatives_of_last_steps_warn(gradient, training, name, regime):
    """One step from an equilibrium z: the derivatives of tanh(a z + u) for u."""
    deq = _layer(gradient)
    with pytest.warns(UserWarning, match=name):
        compute = regime(lambda: _derivatives(deq, training))
        value, first, second = (tensor.numpy() for tensor in compute())
    slope = 1 - value**2
    np.testing.assert_allclose(first, slope, rtol=1e-9)
    np.testing.assert_allclose(second, -2 * value * slope, rtol=1e-9)


@pytest.mark.parametrize(
    "gradient, training", [("implicit", False), ("truncated", True)]
)
def test_forward_mode_raises(gradient, training):
    deq = layers.DEQ(layers.DenseCell(3), gradient=gradient, regularizer=None)
    inputs = tf.ones((2, 4))
    deq(inputs)
    with (
        tf.GradientTape() as tape,  # The call seems to have a second derivative.
        tf.autodiff.ForwardAccumulator(inputs, tf.ones_like(inputs)),
        pytest.raises(NotImplementedError, match="jvp"),
    ):
        tape.watch(inputs)
        deq(inputs, training=training)
