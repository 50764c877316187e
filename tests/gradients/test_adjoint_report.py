"""The errors that the backward pass of an implicit gradient estimates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from tests.layers.cells import FunctionCell

GMRES = gradients.ImplicitGradient(solvers.GMRES(20, 1e-13))
PICARD = solvers.FixedPointIteration(50, 1e-9)
ANDERSON = solvers.Anderson(20, 1e-9)
RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.normal(size=(4, 3))
WEIGHT = RANDOM.normal(size=3)
FULL = RANDOM.normal(size=(3, 3)) * 0.4
NILPOTENT = np.triu(RANDOM.normal(size=(3, 3)), 1)


def _linear_layer(gradient, kernel, dtype="float64"):
    cell = FunctionCell(lambda z, u: z @ tf.cast(kernel, z.dtype) + u, dtype=dtype)
    solver = solvers.FixedPointIteration(2, tol=None)
    return layers.DEQ(cell, solver, gradient, regularizer=None, name="deq")


def _report(gradient, fn, inputs, solver, loss):
    """Returns the report, the value of the layer and the gradient of the inputs."""
    reports = []
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = gradient.solve(
            solvers.FixedPointProblem(fn, inputs),
            solvers.SolveRequest(tf.zeros_like(inputs)),
            solver,
            reports.append,
        ).value
        total = tf.reduce_sum(loss(value))
    of_inputs = tape.gradient(total, inputs)
    return reports[0], value, of_inputs


@pytest.mark.parametrize(
    "gradient, kernel, regime",
    [(GMRES, FULL, "graph"), (gradients.NeumannGradient(3), NILPOTENT, "xla")],
    ids=["implicit", "neumann"],
    indirect=["regime"],
)
def test_loss_error_of_a_linear_problem_is_exact(gradient, kernel, regime):
    @regime
    def compute(inputs):
        report, value, _ = _report(
            gradient,
            lambda z, u: z @ kernel + u,
            inputs,
            solvers.FixedPointIteration(2, tol=None),
            lambda z: z @ WEIGHT[:, None],
        )
        return report.loss_error, value

    error, value = compute(tf.constant(INPUTS))
    expected = (INPUTS @ np.linalg.inv(np.eye(3) - kernel) - value.numpy()) @ WEIGHT
    assert np.min(np.abs(expected)) > 1e-3
    np.testing.assert_allclose(error, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "forward, adjoint, regime",
    [
        (PICARD, PICARD, "eager"),
        (ANDERSON, solvers.FixedPointIteration(100, tol=None), "xla"),
        (ANDERSON, solvers.GMRES(10, 1e-9), "eager"),
    ],
    ids=["slow", "slow_adjoint", "solved"],
    indirect=["regime"],
)
def test_error_of_a_scalar_gradient(forward, adjoint, regime):
    """z = 0.99 z + k with the derivative of z for k at 0.99: z / (1 - 0.99)."""
    slope = tf.Variable(0.99, dtype="float64")
    injection = tf.ones((2, 1), tf.float64)

    @regime
    def compute():
        reports = []
        with tf.GradientTape() as tape:
            weight = tf.convert_to_tensor(slope)
            equilibrium = gradients.ImplicitGradient(adjoint).solve(
                solvers.FixedPointProblem(lambda z, u: weight * z + u, injection),
                solvers.SolveRequest(tf.zeros_like(injection)),
                forward,
                reports.append,
            )
            total = tf.reduce_sum(equilibrium.value)
        gradient = tape.gradient(total, slope)
        return gradient, reports[0].forward_error, reports[0].adjoint_error

    gradient, forward_error, adjoint_error = (float(one) for one in compute())
    expected = 1.0 - gradient / 20000.0
    estimated = 1.0 - (1.0 - forward_error) * (1.0 - adjoint_error)
    np.testing.assert_allclose(estimated, expected, rtol=0.01, atol=1e-6)


def test_error_of_a_gradient_with_slow_modes():
    """Plain steps of tanh(W z + u), whose slow modes a generic cotangent hardly sees:
    the growth of the residual shows them."""
    random = np.random.RandomState(1)
    basis, _ = np.linalg.qr(random.normal(size=(24, 24)))
    kernel = basis @ np.diag([0.95] * 2 + [0.2] * 22) @ basis.T
    inputs = tf.constant(0.3 * random.normal(size=(8, 24)))
    cotangent = tf.constant(random.normal(size=(8, 24)))
    results = {}
    for num_steps in (4, 300):
        results[num_steps] = _report(
            gradients.ImplicitGradient(solvers.GMRES(30, 1e-12)),
            lambda z, u: tf.tanh(z @ kernel + u),
            inputs,
            solvers.FixedPointIteration(num_steps, tol=None),
            lambda z: z * cotangent,
        )
    value, exact = (results[n][1].numpy() for n in (4, 300))
    true = np.linalg.norm(value - exact) / np.linalg.norm(exact)
    report = results[4][0]
    np.testing.assert_allclose(report.forward_error, true, rtol=0.2)
    assert report.adjoint_error < 1e-9
    assert float(results[300][0].forward_error) < 1e-5


def test_samples_without_an_adjoint_do_not_count():
    def report(inputs, rows):
        solver = solvers.FixedPointIteration(3, tol=None)
        return _report(
            gradients.ImplicitGradient(solver),
            lambda z, u: tf.tanh(z @ FULL + u),
            tf.constant(inputs),
            solver,
            lambda z: z[:rows],
        )[0]

    alone = report(INPUTS[:2], 2)
    np.testing.assert_allclose(report(INPUTS, 2)[2:], alone[2:], rtol=1e-12)
    assert np.isnan(report(INPUTS, 0).forward_error)


def test_training_logs_the_loss_error():
    deq = _linear_layer(GMRES, FULL)
    stem = keras.layers.Dense(3, dtype="float64")
    model = keras.Sequential([keras.Input((3,), dtype="float64"), stem, deq])
    model.compile(
        keras.optimizers.SGD(0.0),
        lambda target, output: keras.ops.sum(WEIGHT * output, axis=-1),
        run_eagerly=True,
    )
    logs = model.fit(INPUTS, INPUTS, batch_size=2, verbose=0).history
    equilibrium = stem(INPUTS).numpy() @ np.linalg.inv(np.eye(3) - FULL)
    expected = np.mean(np.abs((equilibrium - model(INPUTS).numpy()) @ WEIGHT))
    np.testing.assert_allclose(logs["deq_loss_error"], [expected], rtol=1e-5)
    logs = model.evaluate(INPUTS, INPUTS, verbose=0, return_dict=True)
    assert logs["deq_loss_error"] == 0.0


def test_float16_does_not_log_the_loss_error():
    names = {
        dtype: [m.name for m in _linear_layer(GMRES, FULL, dtype).metrics]
        for dtype in ("float32", "mixed_bfloat16", "mixed_float16")
    }
    assert "deq_loss_error" in names["float32"]
    assert names["mixed_bfloat16"] == names["float32"]
    assert "deq_loss_error" not in names["mixed_float16"]
