"""The cell of graphs, against dense matrices in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients, layers, solvers

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(2, 5, 3))
# A ring with a loop and a double edge; and a chain of three nodes, padded.
EDGES = np.array(
    [
        [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [2, 2], [0, 1]],
        [[0, 1], [1, 2], [-1, 2], *[[-1, -1]] * 4],
    ]
)
GRAPHS = {"features": FEATURES, "edges": EDGES}


def _matrix(edges, num_nodes):
    matrix = np.zeros((num_nodes, num_nodes))
    for sender, receiver in edges[edges.min(axis=1) >= 0]:
        matrix[receiver, sender] += 1
    degrees = np.outer(matrix.sum(axis=1), matrix.sum(axis=0))
    return matrix / np.sqrt(np.maximum(degrees, 1))


def _layer(activation):
    cell = layers.GraphCell(4, 0.7, activation, seed=0, dtype="float64")
    # The gradient at an equilibrium; a loose default tolerance would hide errors.
    solver = solvers.Anderson(400, 1e-13)
    gradient = gradients.ImplicitGradient(solver)
    layer = layers.DEQ(cell, solver, gradient, dtype="float64")
    layer(GRAPHS)
    cell.recurrent.weights[0].assign(RANDOM.normal(size=(4, 4)))
    cell.projection.bias.assign(RANDOM.normal(size=4))
    return layer


@pytest.mark.parametrize("jit_compile", [False, True])
def test_linear_equilibrium_and_gradient(jit_compile):
    layer = _layer("linear")
    w = layer.cell.recurrent.normalized_kernel().numpy()
    assert 0.68 < np.linalg.norm(w, 2) <= 0.7 + 1e-12
    kernel, bias = (weight.numpy() for weight in layer.cell.projection.weights)
    weights = RANDOM.normal(size=(2, 5, 4))

    of_any_size = [tf.TensorSpec((None, None, 3), "float64")]
    of_any_size.append(tf.TensorSpec((None, None, 2), "int64"))

    @tf.function(jit_compile=jit_compile, input_signature=of_any_size)
    def solve(features, edges):
        with tf.GradientTape() as tape:
            tape.watch(features)
            z = layer({"features": features, "edges": edges})
            total = tf.reduce_sum(weights * z)
        return z, tape.gradient(total, features)

    found = solve(tf.constant(FEATURES), tf.constant(EDGES))
    for z, slope, x, edges, direction in zip(
        *found, FEATURES, EDGES, weights, strict=True
    ):
        # Row by row, S z W is the product of kron(S, W^T) and z.
        system = np.eye(20) - np.kron(_matrix(edges, 5), w.T)
        expected = np.linalg.solve(system, np.ravel(x @ kernel + bias))
        np.testing.assert_allclose(z, expected.reshape(5, 4), rtol=1e-9, atol=1e-10)
        adjoint = np.linalg.solve(system.T, direction.ravel()).reshape(5, 4)
        np.testing.assert_allclose(slope, adjoint @ kernel.T, rtol=1e-8, atol=1e-9)


def test_nonlinear_equilibrium():
    layer = _layer("sigmoid")
    injection = layer.inject(GRAPHS)
    z = layer(GRAPHS).numpy()
    inputs, w = injection["inputs"].numpy(), injection["kernel"].numpy()
    for state, offset, edges in zip(z, inputs, EDGES, strict=True):
        expected = 1 / (1 + np.exp(-(_matrix(edges, 5) @ state @ w + offset)))
        np.testing.assert_allclose(state, expected, atol=1e-11)
    # The constant holds near the equilibrium and far from it.
    constant = float(layer.cell.lipschitz_constant(injection))
    assert 0.17 < constant <= 0.175 + 1e-12  # The slope of a sigmoid is at most 1/4.
    for scale in (1e-3, 1.0):
        other = z + scale * RANDOM.normal(size=z.shape)
        change = layer.cell(other, injection) - layer.cell(z, injection)
        axes = (1, 2)
        distance = np.linalg.norm(other - z, axis=axes)
        assert np.all(np.linalg.norm(change, axis=axes) <= constant * distance)


def test_padding_and_paths():
    layer = _layer("tanh")
    base = layer(GRAPHS).numpy()
    alone = {"features": FEATURES[1:, :3], "edges": EDGES[1:, :2]}
    np.testing.assert_allclose(layer(alone), base[1:, :3], atol=1e-11)
    features = FEATURES.copy()
    features[1, 0] += 1
    changed = layer({"features": features, "edges": EDGES}).numpy() != base
    # Nodes that a path leads to change, and no others.
    assert changed.any(axis=-1).tolist() == [[False] * 5, [True] * 3 + [False] * 2]
    # An edge to a node that does not exist, though the last one is padding.
    mask = np.arange(5) < np.array([[4], [3]])
    for node in (5, 2**32):
        outside = np.where(EDGES == 4, node, EDGES)
        z = layer({"features": FEATURES, "edges": outside}, mask=mask).numpy()
        assert np.isnan(z[0, :4]).all() and not np.isnan(z[1]).any()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_sums_many_edges_in_bfloat16(is_reversed):
    star = np.array([[[i, 0] for i in range(1, 1001)]])
    inputs = {"features": np.ones((1, 1001, 1), "float32"), "edges": star}
    if is_reversed:
        inputs["edges"] = star[..., ::-1]

    def center(dtype):
        layer = layers.DEQ(layers.GraphCell(2, seed=0, dtype=dtype), dtype=dtype)
        features = tf.constant(inputs["features"])
        with tf.GradientTape() as tape:
            tape.watch(features)
            z = layer({**inputs, "features": features})
            total = tf.reduce_sum(tf.cast(z, tf.float32))
        slope = tape.gradient(total, features)
        return np.abs(z[0, 0]).sum(), float(slope[0, 0, 0])

    found, expected = center("mixed_bfloat16"), center("float32")
    np.testing.assert_allclose(found, expected, rtol=0.05)
