"""The gradient of a layer against the exact one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers
from deq_keras.diagnostics import gradient_quality
from tests.layers.cells import FunctionCell

SLOPES = np.array([0.8, 0.3])
INPUTS = np.random.RandomState(0).normal(size=(4, 2))
TIGHT = solvers.Anderson(60, 1e-11)


class DiagonalCell(layers.EquilibriumCell):
    """f(z, u) = a z + u with the derivatives y z for a and y for u."""

    def build(self, state_shape, injection_shape):
        self.slopes = self.add_weight(
            name="slopes", shape=(2,), initializer=lambda *_, **__: SLOPES
        )

    def call(self, state, injection):
        return self.slopes * state + injection


def _layer(gradient, solver=TIGHT):
    return layers.DEQ(DiagonalCell(dtype="float64", name="cell"), solver, gradient)


def _quality(layer):
    quality = gradient_quality(layer, INPUTS, loss=lambda z: z[:, :1], tol=1e-10)
    assert quality.components[1:] == ("weights", "inputs")
    assert quality.components[0].endswith("cell/slopes")
    assert max(quality.residual, quality.adjoint_residual) < 1e-9
    return quality


@pytest.mark.parametrize(
    ("gradient", "ratio"),
    [
        ("implicit", 1.0),
        (gradients.NeumannGradient(3), 1 - 0.8**4),
        (gradients.PhantomGradient(1, 1.0), 0.2),
    ],
    ids=["implicit", "neumann", "phantom"],
)
def test_the_norm_ratio_of_one_mode(gradient, ratio):
    quality = _quality(_layer(gradient))
    np.testing.assert_allclose(quality.cosine, 1.0, atol=1e-9)
    np.testing.assert_allclose(quality.norm_ratio, ratio, rtol=1e-7)
    np.testing.assert_allclose(quality.relative_error, 1 - ratio, atol=1e-6)


def test_a_forward_solve_that_stops_early():
    """The state and its gradient for the slopes lack 0.8^5."""
    adjoint = gradients.ImplicitGradient(solvers.GMRES(10, 1e-12))
    solver = solvers.FixedPointIteration(6, tol=None)
    quality = _quality(_layer(adjoint, solver))
    expected = [1 - 0.8**5, 1 - 0.8**5, 1.0]
    np.testing.assert_allclose(quality.norm_ratio, expected, rtol=1e-7)


def test_the_cosine_of_two_modes():
    layer = _layer(gradients.PhantomGradient(1, 1.0))
    quality = gradient_quality(layer, INPUTS, loss=lambda z: z, tol=1e-10)
    exact = 1 / (1 - SLOPES)
    np.testing.assert_allclose(
        quality.cosine[-1], exact.sum() / np.linalg.norm(exact) / np.sqrt(2), rtol=1e-7
    )


def test_model_is_unchanged_and_draws_are_seeded():
    layer = layers.DEQ(layers.DenseCell(4), gradient="truncated", name="deq")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), layer])
    before = [variable.numpy() for variable in model.variables]
    first, second = (gradient_quality(model, np.float32(INPUTS)) for _ in range(2))
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    np.testing.assert_array_equal(first.cosine, second.cosine)
    assert np.all(first.cosine > 0.9)
    kernels = [name.rsplit("/", 1)[-1] for name in first.components]
    assert kernels == ["kernel", "kernel", "bias", "weights", "inputs"]


def test_nothing_to_differentiate_raises():
    cell = FunctionCell(
        lambda z, u: 0.5 * z + u, inject=lambda x: tf.cast(x, "float32")
    )
    with pytest.raises(ValueError, match="(?s)Nothing has a gradient.*Received"):
        gradient_quality(layers.DEQ(cell), np.ones((2, 3), "int32"))
