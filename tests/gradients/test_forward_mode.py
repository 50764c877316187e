"""Forward mode, `tf.autodiff.ForwardAccumulator`, against dense algebra."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.core.custom_gradient import custom_gradient
from tests.layers.cells import TanhCell

BATCH, UNITS, FEATURES = 3, 4, 5
RANDOM = np.random.RandomState(0)
INPUTS, TANGENT = RANDOM.normal(size=(2, BATCH, FEATURES))
KERNEL_TANGENT = RANDOM.normal(size=(UNITS, UNITS))
COTANGENT = RANDOM.normal(size=(BATCH, UNITS))

EXACT = [
    gradients.ImplicitGradient(),
    gradients.ImplicitGradient(solvers.GMRES(10, 1e-13)),
    gradients.ImplicitGradient(solvers.BiCGStab(40, 1e-13)),
]


def _layer(gradient="implicit", cell=None, solver=None):
    cell = cell or TanhCell(UNITS, scale=0.8, dtype="float64")
    solver = solver or solvers.Anderson(100, 1e-13)
    deq = layers.DEQ(cell, solver, gradient, regularizer=None)
    deq.build((None, FEATURES))
    return deq


def _jvp(deq, inputs=INPUTS, tangent=TANGENT, **options):
    inputs, tangent = map(tf.convert_to_tensor, (inputs, tangent))
    with tf.autodiff.ForwardAccumulator(inputs, tangent) as accumulator:
        value = deq(inputs, **options)
    return value, accumulator.jvp(value)


def _weight_jvp(deq, inputs=INPUTS):
    kernel = deq.cell.recurrent.kernel.value
    with tf.autodiff.ForwardAccumulator(kernel, KERNEL_TANGENT) as accumulator:
        value = deq(tf.constant(inputs))
    return value, accumulator.jvp(value)


def _expected(deq, value, of_kernel):
    """Solves (I - J) dz = df by dense algebra, with J = diag(1 - z^2) W^T."""
    kernel, projection = (
        layer.kernel.numpy() for layer in (deq.cell.recurrent, deq.cell.projection)
    )
    slope = 1 - value**2
    change = value @ KERNEL_TANGENT if of_kernel else TANGENT @ projection
    jacobian = slope[:, :, None] * kernel.T
    tangent = np.linalg.solve(np.eye(UNITS) - jacobian, (slope * change)[:, :, None])
    return tangent[:, :, 0]


@pytest.mark.parametrize(
    "gradient, jvp, regime",
    [
        (EXACT[0], _jvp, "eager"),
        (EXACT[0], _weight_jvp, "graph"),
        (EXACT[1], _weight_jvp, "eager"),
        (EXACT[1], _jvp, "graph"),
        (EXACT[2], _jvp, "eager"),
        (EXACT[2], _weight_jvp, "graph"),
    ],
    indirect=["regime"],
)
def test_tangents_equal_the_dense_solution(gradient, jvp, regime):
    deq = _layer(gradient)
    value, actual = regime(lambda: jvp(deq))()
    expected = _expected(deq, value.numpy(), of_kernel=jvp is _weight_jvp)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
def test_unknown_batch_size_and_xla():
    deq = _layer()
    _, expected = _jvp(deq)
    spec = tf.TensorSpec((None, FEATURES), tf.float64)

    def call(inputs, tangent):
        return _jvp(deq, inputs, tangent)[1]

    for options in ({"input_signature": [spec, spec]}, {"jit_compile": True}):
        actual = tf.function(call, **options)(INPUTS, TANGENT)
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def _monotone(solver):
    solver = solvers.get({"class_name": solver, "max_iter": 400, "tol": 1e-12})
    return _layer(cell=layers.MonotoneDenseCell(UNITS, dtype="float64"), solver=solver)


def _of_layer_with_norms():
    keras.utils.set_random_seed(0)
    block = keras.Sequential(
        [
            keras.layers.Dense(UNITS, dtype="float64"),
            layers.GroupNormalization(groups=1, dtype="float64"),
        ]
    )
    cell = layers.cell_from(block, dtype="float64")
    return _layer(EXACT[1], cell=cell)


@pytest.mark.parametrize(
    "build, regime",
    [
        (lambda: _layer(gradients.NeumannGradient(5)), "eager"),
        (lambda: _layer("truncated"), "graph"),
        (lambda: _layer(gradients.TruncatedGradient(1, 0)), "eager"),
        (lambda: _monotone("peaceman_rachford"), "eager"),
        (lambda: _monotone("forward_backward"), "graph"),
        (_of_layer_with_norms, "graph"),
    ],
    ids=["neumann", "truncated", "one_step", "peaceman", "forward_backward", "norms"],
    indirect=["regime"],
)
def test_tangents_are_adjoint_to_gradients(build, regime):
    """<v, dz> = <gradient of <v, z>, du>, also for approximations and custom cells."""
    deq = build()

    def products():
        inputs = tf.constant(INPUTS)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(deq(inputs) * COTANGENT)
        of_tape = tf.reduce_sum(tape.gradient(loss, inputs) * TANGENT)
        return tf.reduce_sum(_jvp(deq)[1] * COTANGENT), of_tape

    forward, reverse = regime(products)()
    assert abs(float(forward)) > 1e-3
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)


@pytest.mark.slow
def test_attention_cells_have_tangents():
    """Their attention has a gradient of its own, which TensorFlow transposes."""
    cell = layers.AttentionCell(4, 2, dtype="float64")
    solver = solvers.Anderson(max_iter=4)
    deq = layers.DEQ(cell, solver, gradients.NeumannGradient(3), regularizer=None)
    inputs, tangent = tf.constant(np.random.RandomState(1).normal(size=(2, 1, 5, 4)))
    deq(inputs)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(deq(inputs) ** 3)
    with tf.autodiff.ForwardAccumulator(inputs, tangent) as accumulator:
        forward = tf.reduce_sum(deq(inputs) ** 3)
    expected = tf.reduce_sum(tape.gradient(loss, inputs) * tangent)
    np.testing.assert_allclose(accumulator.jvp(forward), expected, rtol=1e-9)


@pytest.mark.parametrize(
    "jvp, regime", [(_jvp, "graph"), (_weight_jvp, "eager")], indirect=["regime"]
)
def test_failed_samples_have_no_tangent_and_affect_no_other(jvp, regime):
    deq = _layer()
    broken = INPUTS.copy()
    broken[1] = np.nan
    value, tangent = (t.numpy() for t in regime(lambda: jvp(deq, broken))())
    _, expected = jvp(deq)
    assert np.isnan(value[1]).all()
    assert not tangent[1].any()
    np.testing.assert_allclose(tangent[[0, 2]], expected.numpy()[[0, 2]], rtol=1e-10)


def test_states_along_the_solve_have_tangents():
    """Earlier states have the tangent of one evaluation, as their gradient."""
    deq = _layer()
    inputs = tf.constant(INPUTS)
    with tf.autodiff.ForwardAccumulator(inputs, tf.constant(TANGENT)) as accumulator:
        states = deq(inputs, num_states=2, max_iter=4, tol=0.0)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(deq(inputs, num_states=2, max_iter=4, tol=0.0)[0])
    expected = tf.reduce_sum(tape.gradient(loss, inputs) * TANGENT)
    actual = tf.reduce_sum(accumulator.jvp(states[0]))
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_tape_and_accumulator_of_one_call_agree(exact_regime):
    deq = _layer()

    def derivatives():
        inputs = tf.constant(INPUTS)
        with (
            tf.GradientTape() as tape,
            tf.autodiff.ForwardAccumulator(inputs, tf.constant(TANGENT)) as accumulator,
        ):
            tape.watch(inputs)
            loss = tf.reduce_sum(deq(inputs))
        gradient = tape.gradient(loss, inputs)
        return accumulator.jvp(loss), tf.reduce_sum(gradient * TANGENT)

    forward, reverse = exact_regime(derivatives)()
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)


def _tape_of_tangent(deq, inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        _, tangent = _jvp(deq, inputs)
    return tape.gradient(tangent, inputs)


def _tangent_of_tape(deq, inputs):
    with tf.autodiff.ForwardAccumulator(inputs, tf.constant(TANGENT)):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = deq(inputs)
        return tape.gradient(value, inputs)


@pytest.mark.parametrize(
    "compute, regime",
    [(_tape_of_tangent, "graph"), (_tangent_of_tape, "eager")],
    indirect=["regime"],
)
def test_second_derivatives_are_refused(compute, regime):
    deq = _layer()
    with pytest.raises(NotImplementedError, match="ImplicitGradient has no second"):
        regime(lambda: compute(deq, tf.constant(INPUTS)))()


def test_nested_accumulators_are_refused():
    deq, inputs = _layer(), tf.constant(INPUTS)
    with (
        tf.autodiff.ForwardAccumulator(inputs, tf.constant(TANGENT)),
        pytest.raises(NotImplementedError, match="ImplicitGradient has no second"),
    ):
        _jvp(deq, inputs)


def test_accumulator_outside_of_a_function_names_the_remedy():
    deq = _layer()
    call = tf.function(deq)
    with pytest.raises(NotImplementedError, match="ForwardAccumulator` in it"):
        _jvp(call)


# (gradient, name in the error, training, of weights, regime)
REFUSED = [
    ("truncated", "TruncatedGradient", True, False, "eager"),
    ("implicit", "ImplicitGradient", True, False, "graph"),
    ("implicit", "ImplicitGradient", True, True, "eager"),
    ("phantom", "PhantomGradient", False, True, "graph"),
    ("phantom", "PhantomGradient", True, False, "eager"),
    ("unrolled", "UnrolledGradient", False, False, "graph"),
    ("unrolled", "UnrolledGradient", True, True, "graph"),
]


@pytest.mark.parametrize(
    "gradient, name, training, of_weights, regime", REFUSED, indirect=["regime"]
)
def test_what_has_no_tangent_says_so(gradient, name, training, of_weights, regime):
    deq = _layer(gradient)

    def compute():
        inputs = tf.constant(INPUTS)
        primal = deq.cell.recurrent.kernel.value if of_weights else inputs
        with tf.autodiff.ForwardAccumulator(primal, tf.ones_like(primal)):
            return deq(inputs, training=training)

    match = f"{name} has no forward-mode.*GradientTape"
    with pytest.raises(NotImplementedError, match=match):
        regime(compute)()


def test_a_solve_scope_has_no_tangent():
    deq = _layer()
    with (
        layers.SolveScope(max_iter=50),
        pytest.raises(NotImplementedError, match="outside of a SolveScope"),
    ):
        _jvp(deq)


def test_custom_gradients_take_a_rule_of_forward_mode(exact_regime):
    def cube(x):
        return x**3, lambda cotangent: [3.0 * x**2 * cotangent]

    def derivative(tangent):
        def compute(x):
            with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
                value = custom_gradient(cube, tangent)(x)
            return accumulator.jvp(value)

        return float(exact_regime(compute)(tf.constant(2.0)))

    assert derivative("transposed") == 12.0
    assert derivative(lambda change: [7.0 * change]) == 7.0
    with pytest.raises(NotImplementedError, match="no forward-mode"):
        derivative(None)
