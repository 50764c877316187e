"""The golden arrays, and the problems that they belong to."""

import functools
import pathlib

import numpy as np
import tensorflow as tf

from deq_keras.testing.problems import Problem


@functools.cache
def load(name):
    """Returns the arrays of `<name>.npz` as a dict."""
    path = pathlib.Path(__file__).parent / f"{name}.npz"
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def part(name, prefix):
    """Returns the arrays of `<name>.npz` below a prefix, by the rest of their names."""
    return {
        key.removeprefix(prefix): array
        for key, array in load(name).items()
        if key.startswith(prefix)
    }


def weights(name, problem):
    """Returns the weights of a problem in `<name>.npz` as a dict of tensors."""
    return {k: tf.constant(v) for k, v in part(name, f"{problem}/w/").items()}


def _affine(w):
    return lambda z: tf.einsum("ij,bjl->bil", w["A"], z) + w["b"]


def _tanh(w):
    constant = tf.einsum("ij,bjl->bil", w["U"], w["x"]) + w["b"][:, None]
    return lambda z: tf.tanh(tf.einsum("ij,bjl->bil", w["A"], z) + constant)


def mlp(w):
    """f(z) = W2 tanh(W1 z + b1) + x, features on axis 1."""

    def function(z):
        hidden = tf.tanh(tf.einsum("ij,bjl->bil", w["W1"], z) + w["b1"][:, None])
        return tf.einsum("ij,bjl->bil", w["W2"], hidden) + w["x"]

    return function


def _multiscale(w):
    shapes = [(3, 4, 4), (4, 2, 2), (5, 1, 1)]

    def function(state):
        flat = [tf.reshape(leaf, [len(leaf), -1]) for leaf in state]
        new = []
        for i, shape in enumerate(shapes):
            total = sum(
                tf.matmul(flat[j], w[f"W{i}{j}"], transpose_b=True) for j in range(3)
            )
            new.append(tf.tanh(tf.reshape(total, [-1, *shape]) + w[f"b{i}"]))
        return tuple(new)

    return function


FUNCTIONS = {"p1_linear": _affine, "p2_tanh": _tanh, "p3_mlp": mlp}


def golden_problem(name):
    """Returns a golden problem; `p6_multi` has a state of three feature maps."""
    arrays = load("solvers")
    start, equilibrium = arrays[f"{name}/z0"], arrays[f"{name}/z_exact"]
    if name == "p6_multi":
        function = _multiscale(weights("solvers", name))
        return Problem(function, split_maps(start), split_maps(equilibrium))
    function = FUNCTIONS[name](weights("solvers", name))
    return Problem(function, tf.constant(start), tf.constant(equilibrium))


def split_maps(matrix):
    """Splits the `(2, 69, 1)` state of `p6_multi` into its three feature maps."""
    shapes = [(3, 4, 4), (4, 2, 2), (5, 1, 1)]
    columns = tf.split(tf.constant(matrix)[:, :, 0], [48, 16, 5], axis=1)
    return tuple(
        tf.reshape(column, [-1, *shape])
        for column, shape in zip(columns, shapes, strict=True)
    )


def fill(shape, k, scale):
    """Returns the reference sheet's deterministic numbers, in row-major order."""
    n = np.arange(np.prod(shape, dtype=int))
    return scale * np.sin(1 + k + 0.7 * n + 0.013 * n**2).reshape(shape)
