"""Loss scaling sees what overflows in a backward pass, and nothing else suffers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import deq_keras
from deq_keras import gradients, solvers
from tests.regimes import slow


def steep(state, injection):
    """z / 2 + x, by way of numbers 600 times as large on the way back."""
    return state * injection["down"] * injection["up"] + injection["x"]


@pytest.mark.parametrize(
    ("gradient", "dtype"),
    [("neumann", "float16"), slow("implicit", "float16"), slow("neumann", "bfloat16")],
)
def test_overflow_in_the_adjoint_is_not_finite(gradient, dtype):
    """A finite sum of the terms before it would pass for the gradient."""
    ones = tf.ones((2, 3), dtype)
    solver = solvers.FixedPointIteration(max_iter=20, tol=None)

    def of(x, weights):
        injection = {"x": x, "up": 300.0 * ones, "down": ones / 600.0}
        with tf.GradientTape() as tape:
            tape.watch(x)
            request = solvers.SolveRequest(ones)
            found = gradients.get(gradient).solve(
                solvers.FixedPointProblem(steep, injection), request, solver
            )
            loss = tf.reduce_sum(found.value * weights)
        return tape.gradient(loss, x)

    # 300 times the second overflows in float16, and the sum itself does not.
    weights = tf.constant([[1.0], [1000.0]], dtype)
    found = of(ones, weights).numpy().astype("float64")
    np.testing.assert_allclose(found[0], 2.0, rtol=0.02)
    if dtype == "float16":
        assert np.isnan(found[1]).all()
    else:
        np.testing.assert_allclose(found[1], 2000.0, rtol=0.02)


@pytest.mark.parametrize(
    ("gradient", "jit_compile"),
    [slow("implicit", False), slow("neumann", True), slow("truncated", True)],
)
def test_skipped_steps_change_nothing(gradient, jit_compile):
    keras.config.set_dtype_policy("mixed_float16")
    cell = deq_keras.layers.DenseCell(8)
    layer = deq_keras.layers.DEQ(cell, gradient=gradient, name="deq", seed=1)
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1, dtype="float32")(layer(inputs))
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.02), initial_scale=2.0**36
    )
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    before = [weight.numpy() for weight in model.trainable_variables]
    fit = {"batch_size": 16, "verbose": 0, "shuffle": False}
    skipped = model.fit(x, x[:, :1], epochs=4, **fit).history
    for weight, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    assert float(optimizer.dynamic_scale) == 2.0**32
    trained = model.fit(x, x[:, :1], epochs=60, **fit).history
    assert float(optimizer.dynamic_scale) < 2.0**32
    assert trained["loss"][-1] < 0.2 * trained["loss"][0]
    for name, values in trained.items():
        assert np.isfinite(values[-10:]).all(), name
    for name, values in skipped.items():
        is_of_steps_alone = name.startswith(("deq_adjoint", "deq_gradient"))
        assert not np.isinf(values).any(), name
        assert np.isfinite(values).all() or is_of_steps_alone, name
