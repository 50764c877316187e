"""Independent answers, by dense linear algebra in NumPy."""

import numpy as np
import tensorflow as tf


def dense_jacobians(function, point):
    """df/dz of every sample as a dense matrix, `(batch, features, features)`.

    Args:
        function: function from `(batch, features)` to `(batch, features)`, without
            coupling between samples.
        point: `(batch, features)` tensor.
    """
    point = tf.convert_to_tensor(point)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(point)
        value = function(point)
    return tape.batch_jacobian(value, point, experimental_use_pfor=False).numpy()


def dense_adjoint(jacobians, cotangent):
    """Solves y = J^T y + c for every sample."""
    identity = np.eye(jacobians.shape[-1])
    systems = identity - np.swapaxes(jacobians, 1, 2)
    return np.linalg.solve(systems, np.asarray(cotangent)[..., None])[..., 0]


def relative_error(actual, expected):
    """The largest deviation over the largest expected magnitude."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    scale = max(np.abs(expected).max(), 1e-300)
    return np.abs(actual - expected).max() / scale
