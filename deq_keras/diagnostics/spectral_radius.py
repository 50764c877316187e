"""The spectral radius of df/dz at an equilibrium."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.structure import StateStructure


class SpectralRadius(NamedTuple):
    """The result of `spectral_radius`, per sample.

    Attributes:
        value: float tensor `(batch,)`. |lambda| of the dominant eigenvalue.
        residual: float tensor `(batch,)`. |J^T w - lambda w| / |lambda| of its unit
            eigenvector w: how far it is from an eigenpair.
        converged: bool tensor `(batch,)`. Whether `residual` is at most `tol`. A
            `value` that has not converged is only an estimate.
        num_iterations: int32 scalar. Iterations that were run.
    """

    value: tf.Tensor
    residual: tf.Tensor
    converged: tf.Tensor
    num_iterations: tf.Tensor


def spectral_radius(linearization, max_iter=150, tol=1e-3, seed=0):
    """Estimates the spectral radius of df/dz, for every sample.

    Orthogonal iteration on a pair of vectors, with the eigenvalues of the 2 x 2
    projection of J^T. A pair is what a real Jacobian needs: its dominant eigenvalue may
    be a complex pair, or +r and -r, and a single vector (the reference's Rayleigh
    quotient) then turns forever. An iteration costs two vector-Jacobian products.

    Args:
        linearization: a `Linearization` of f at the equilibrium. Samples must not
            depend on each other.
        max_iter: int >= 1. Budget of iterations. Defaults to `150`.
        tol: float >= 0. Relative residual of the eigenpair at which a sample is
            converged; the loop ends when all are. Defaults to `1e-3`.
        seed: int. Draws the starting pair. Defaults to `0`.

    Returns:
        A `SpectralRadius`.

    Example:

    >>> from deq_keras.linearization import linearize
    >>> rotation = 0.9 * tf.constant([[0.0, -1.0], [1.0, 0.0]])
    >>> result = deq_keras.diagnostics.spectral_radius(
    ...     linearize(lambda z: z @ rotation, tf.zeros((1, 2))))
    >>> round(float(result.value[0]), 3)
    0.9
    """
    structure = StateStructure(linearization.point)
    point = structure.to_matrix(linearization.point)

    def product(matrix):
        vector = structure.to_state(matrix)
        return structure.to_matrix(linearization.vjp(vector))

    def body(i, pair, _, __):
        pair = _orthonormal(pair)
        image = tf.stack([product(pair[0]), product(pair[1])])  # (2, B, D)
        radius, residual = _dominant_eigenpair(pair, image)
        return i + 1, image, radius, residual

    shape = tf.concat([[2], tf.shape(point)], axis=0)
    pair = tf.random.stateless_normal(shape, [seed, 0], dtype=structure.dtype)
    pair = tf.ensure_shape(pair, [2, *point.shape])
    zeros = tf.zeros_like(point[:, 0])
    count, _, radius, residual = tf.while_loop(
        lambda i, pair, radius, residual: tf.reduce_any(~(residual <= tol)),
        body,
        (0, pair, zeros, zeros + float("inf")),
        maximum_iterations=max_iter,
    )
    return SpectralRadius(radius, residual, residual <= tol, count)


def _orthonormal(pair):
    first = _normalized(pair[0])
    second = pair[1]
    for _ in range(2):  # Once is not enough when the two are nearly parallel.
        second = _normalized(second - _dot(first, second)[:, None] * first)
    return tf.stack([first, second])  # (2, B, D)


def _normalized(vector):
    norm = tf.sqrt(_dot(vector, vector))[:, None]
    return vector / tf.where(norm > 0, norm, 1.0)


def _dot(left, right):
    return tf.reduce_sum(left * right, axis=1)  # (B,)


def _dominant_eigenpair(pair, image):
    """|lambda| and relative residual of the larger Ritz value of J^T on the pair."""
    a, b = _dot(pair[0], image[0]), _dot(pair[0], image[1])
    c, d = _dot(pair[1], image[0]), _dot(pair[1], image[1])
    half_trace = (a + d) / 2
    # The discriminant as a sum: half_trace^2 - (a d - b c) would cancel.
    discriminant = tf.square((a - d) / 2) + b * c
    is_real = discriminant >= 0
    root = tf.sqrt(tf.abs(discriminant))
    shift = tf.where(half_trace < 0, -root, root)
    real = half_trace + tf.where(is_real, shift, 0.0)
    zero = tf.zeros_like(root)
    imaginary = tf.where(is_real, zero, root)
    radius = tf.sqrt(tf.square(real) + tf.square(imaginary))
    # The eigenvector of [[a, b], [c, d]] is (b, lambda - a) or (lambda - d, c).
    use_first = tf.square(b) + tf.square(real - a) > tf.square(c) + tf.square(real - d)
    first = tf.where(use_first, b, real - d), tf.where(use_first, zero, imaginary)
    second = tf.where(use_first, real - a, c), tf.where(use_first, imaginary, 0.0)
    # Of a multiple of the identity every vector is an eigenvector.
    is_zero = _size(*first, *second) == 0
    first = tf.where(is_zero, zero + 1.0, first[0]), first[1]
    error = (
        image[0] - a[:, None] * pair[0] - c[:, None] * pair[1],
        image[1] - b[:, None] * pair[0] - d[:, None] * pair[1],
    )
    overlap = first[0] * second[0] + first[1] * second[1]
    squared = (
        _size(*first) * _dot(error[0], error[0])
        + _size(*second) * _dot(error[1], error[1])
        + 2 * overlap * _dot(error[0], error[1])
    )
    residual = tf.sqrt(tf.maximum(squared, 0.0) / _size(*first, *second))
    # A zero Jacobian has the eigenvalue zero exactly.
    return radius, tf.where(residual > 0, residual / radius, residual)


def _size(*parts):
    return tf.add_n([tf.square(part) for part in parts])
