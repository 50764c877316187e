"""Functions with a given Jacobian, and the spectral radius of it."""

import functools

import tensorflow as tf

from deq_keras import diagnostics


def linear(matrices):
    """f(z)_b = J_b z_b, linearized, of a tensor of Jacobians."""
    return diagnostics.linearize(
        lambda z: tf.linalg.matvec(matrices, z),
        tf.zeros(tf.shape(matrices)[:2], matrices.dtype),
    )


@functools.cache
def _compiled_radius(dtype, arguments):
    """Returns a function of Jacobians of any number and size, traced only once.

    Args:
        dtype: str. Dtype of the Jacobians.
        arguments: tuple of the pairs of a name and a value, for `spectral_radius`.
    """

    signature = [tf.TensorSpec([None, None, None], dtype)]

    @tf.function(input_signature=signature, autograph=False)
    def radius(matrices):
        return diagnostics.spectral_radius(linear(matrices), **dict(arguments))

    return lambda jacobians: radius(tf.cast(jacobians, dtype))


def measured(jacobians, dtype="float64", **arguments):
    """Returns the `SpectralRadius` of Jacobians."""
    return _compiled_radius(dtype, tuple(arguments.items()))(jacobians)
