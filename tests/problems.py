"""A zoo of fixed-point problems z = f(z), each there for a reason."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

BATCH = 3
FEATURES = 6


class Problem(NamedTuple):
    """A fixed-point problem.

    Attributes:
        function: function from a state to a state.
        initial_state: nest of `(batch, ...)` tensors.
        equilibrium: nest of arrays like the state, or `None` where only the defining
            property f(z) = z can be checked.
    """

    function: Callable
    initial_state: Any
    equilibrium: Any = None


def linear(matrix, dtype="float64", seed=0, batch=BATCH):
    """f(z) = z A^T + b with the same A for every sample; solved by linear algebra."""
    bias = np.random.RandomState(seed).normal(size=(batch, len(matrix)))
    kernel, offset = tf.constant(matrix.T, dtype), tf.constant(bias, dtype)
    equilibrium = np.linalg.solve(np.eye(len(matrix)) - matrix, bias.T).T
    return Problem(
        function=lambda z: tf.matmul(z, kernel) + offset,
        initial_state=tf.zeros((batch, len(matrix)), dtype),
        equilibrium=equilibrium,
    )


def contraction(dtype="float64"):
    """Every solver must converge here: |A| = 0.6."""
    matrix = np.random.RandomState(1).normal(size=(FEATURES, FEATURES))
    return linear(0.6 * matrix / np.linalg.norm(matrix, 2), dtype)


def negative_spectrum(dtype="float64"):
    """Eigenvalues between -0.9 and -0.1: undamped iteration oscillates."""
    basis, _ = np.linalg.qr(np.random.RandomState(2).normal(size=(FEATURES,) * 2))
    eigenvalues = np.linspace(-0.9, -0.1, FEATURES)
    return linear(basis @ np.diag(eigenvalues) @ basis.T, dtype)


def complex_spectrum(dtype="float64"):
    """Three rotations of radius 0.8: every eigenvalue is one of a complex pair."""
    matrix = np.zeros((FEATURES, FEATURES))
    for i, angle in enumerate((0.4, 1.3, 2.5)):
        cosine, sine = 0.8 * np.cos(angle), 0.8 * np.sin(angle)
        block = [[cosine, -sine], [sine, cosine]]
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    return linear(matrix, dtype)


def non_normal_matrix(seed=3, size=FEATURES):
    """Spectral radius 0.5, but a norm far above 1: residuals grow before they fall."""
    strictly_upper = np.triu(np.random.RandomState(seed).normal(size=(size,) * 2), 1)
    return np.diag(np.linspace(-0.5, 0.5, size)) + 1.5 * strictly_upper


def non_normal(dtype="float64"):
    """Converges only after the residual has grown; the norm says nothing."""
    return linear(non_normal_matrix(), dtype)


def tanh(dtype="float64"):
    """The nonlinearity of a recurrent cell; the norm of its kernel is above 1."""
    random = np.random.RandomState(4)
    kernel = tf.constant(random.normal(size=(FEATURES, FEATURES)) * 0.35, dtype)
    bias = tf.constant(random.normal(size=(BATCH, FEATURES)), dtype)
    return Problem(
        function=lambda z: tf.tanh(tf.matmul(z, kernel) + bias),
        initial_state=tf.zeros((BATCH, FEATURES), dtype),
    )


def nest(dtype="float64"):
    """A dict of a feature map and a tuple, every leaf dependent on every other."""
    shapes = {"map": (2, 2, 3), "rest": ((4,), (2, 1))}
    random = np.random.RandomState(5)
    kernel = tf.constant(random.normal(size=(18, 18)) * 0.15, dtype)
    bias = tf.constant(random.normal(size=(BATCH, 18)), dtype)

    def function(state):
        flat = [state["map"], *state["rest"]]
        columns = [tf.reshape(leaf, [-1, np.prod(leaf.shape[1:])]) for leaf in flat]
        new = tf.tanh(tf.matmul(tf.concat(columns, 1), kernel) + bias)  # (B, 18)
        return {
            "map": tf.reshape(new[:, :12], [-1, 2, 2, 3]),
            "rest": (new[:, 12:16], tf.reshape(new[:, 16:], [-1, 2, 1])),
        }

    initial_state = {
        "map": tf.zeros((BATCH, *shapes["map"]), dtype),
        "rest": tuple(tf.zeros((BATCH, *shape), dtype) for shape in shapes["rest"]),
    }
    return Problem(function, initial_state)


ZOO = {
    problem.__name__: problem
    for problem in (
        contraction,
        negative_spectrum,
        complex_spectrum,
        non_normal,
        tanh,
        nest,
    )
}
