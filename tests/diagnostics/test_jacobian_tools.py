"""Spectral radius and Frobenius norm against explicit Jacobians."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics, layers
from deq_keras.testing.problems import ZOO, dense_jacobians
from tests.diagnostics.jacobians import linear, measured
from tests.layers.cells import SubclassedModel


def _linear(jacobians, dtype="float64"):
    """f(z)_b = J_b z_b, linearized."""
    matrices = tf.constant(jacobians, dtype)
    return linear(matrices)


def test_xla_raises():
    linearization = _linear(np.eye(2)[None])
    compiled = tf.function(
        lambda: diagnostics.spectral_radius(linearization), jit_compile=True
    )
    with pytest.raises(ValueError, match="XLA"):
        compiled()


def test_residual_is_that_of_the_eigenpair():
    """With a converged pair |J^T w - lambda w| is small; it is relative to lambda."""
    jacobian = np.diag(np.append(2.0, np.linspace(-1.0, 1.0, 39)))
    tolerances = (1e-2, 1e-8)
    results = [
        measured(s * jacobian[None], tol=tol) for tol in tolerances for s in (1.0, 1e-4)
    ]
    for result, tol in zip(results, np.repeat(tolerances, 2), strict=True):
        assert 0 < result.residual[0] <= tol
    # Scale invariant: as many iterations for a tiny Jacobian.
    assert results[0].num_iterations == results[1].num_iterations
    assert results[2].num_iterations > results[0].num_iterations


def test_nests_and_nonlinear_functions():
    problem = ZOO["tanh"]()
    point = tf.random.stateless_normal((3, 6), [0, 1], dtype=tf.float64)
    jacobians = dense_jacobians(problem.function, point)
    expected = np.abs(np.linalg.eigvals(jacobians)).max(axis=1)
    result = tf.function(
        lambda: diagnostics.spectral_radius(
            diagnostics.linearize(problem.function, point), max_iter=500, tol=1e-6
        )
    )()
    np.testing.assert_allclose(
        result.value.numpy()[result.converged], expected[result.converged], rtol=1e-4
    )
    assert np.any(result.converged)

    nested = diagnostics.linearize(
        lambda s: {"a": 0.25 * s["a"], "b": -0.75 * s["b"]},
        {"a": tf.zeros((2, 3)), "b": tf.zeros((2, 2, 2))},
    )
    result = diagnostics.spectral_radius(nested)
    np.testing.assert_allclose(result.value, 0.75, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_spectral_radius_in_every_precision(dtype):
    jacobian = np.diag([0.75, 0.25, 0.125])[None]
    result = measured(jacobian, dtype, tol=2e-2)
    assert result.value.dtype == "float32"
    np.testing.assert_allclose(result.value, 0.75, rtol=2e-2)


@pytest.mark.parametrize("regime", ["graph", "xla"], indirect=True)
def test_frobenius_norm(regime):
    random = np.random.RandomState(0)
    jacobians = (
        random.normal(size=(3, 12, 12)) * np.array([0.1, 1.0, 5.0])[:, None, None]
    )

    @regime
    def norm():
        return diagnostics.jacobian_norm(_linear(jacobians), num_probes=60)

    expected = np.linalg.norm(jacobians, axis=(1, 2))
    np.testing.assert_allclose(norm(), expected, rtol=0.2)


def test_the_squared_frobenius_norm_is_unbiased():
    jacobian = np.random.RandomState(1).normal(size=(1, 6, 6))
    squares = [
        diagnostics.jacobian_norm(_linear(jacobian), num_probes=8, seed=seed).numpy()
        for seed in range(40)
    ]
    squares = np.square(squares)
    error = np.std(squares) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - np.sum(jacobian**2)) < 4 * error
    assert len(np.unique(squares)) == 40


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_frobenius_norm_of_non_finite_jacobians(value):
    jacobians = np.stack([np.eye(4), np.diag([value, 1.0, 1.0, 1.0])])
    norm = diagnostics.jacobian_norm(_linear(jacobians)).numpy()
    assert np.isfinite(norm[0]) and not np.isfinite(norm[1])


@pytest.mark.usefixtures("full_float32")
def test_radius_of_a_model_is_that_of_its_layer():
    layer = layers.DEQ(layers.DenseCell(4, seed=1), name="deq")
    inner = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(2)])
    inputs = keras.Input((3,))
    encoder = keras.layers.Dense(6)
    model = keras.Model(inputs, inner(encoder(inputs)))
    x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    encoded = encoder(x)
    linearization = layer.problem(encoded).linearize(layer.solve(encoded).point)
    expected = diagnostics.spectral_radius(linearization).value
    for subject, given in ((model, x), (inner, encoded), (layer, encoded)):
        radius = diagnostics.spectral_radius(subject, given)
        np.testing.assert_allclose(radius.value, expected, rtol=1e-5)


def test_other_subjects_raise():
    x = np.ones((2, 3), "float32")
    two = keras.Sequential([layers.DEQ(layers.DenseCell(4)) for _ in range(2)])
    for subject in (two, keras.layers.Dense(2), "deq", SubclassedModel()):
        with pytest.raises(ValueError, match="Received"):
            diagnostics.spectral_radius(subject, x)
    with pytest.raises(ValueError, match="`max_iter`"):
        diagnostics.spectral_radius(_linear(np.eye(2)[None]), 100)
