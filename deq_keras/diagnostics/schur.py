"""Eigenvalues of a batch of small Hessenberg matrices."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from deq_keras.core.graphs import is_compiled_by_xla

# Maximum QR steps per row, as in LAPACK. Two are typical.
_STEPS_PER_ROW = 30
# Number of steps without progress after which an exceptional shift is used.
_EXCEPTIONAL = 10


class Schur(NamedTuple):
    """Schur form A = Q T Q^H of every matrix of a batch.

    Attributes:
        triangle: Complex `(batch, n, n)`. T, upper triangular, with the eigenvalues on
            its diagonal. NaN if the iteration did not converge.
        basis: Complex `(batch, n, n)`. Q, unitary.
    """

    triangle: tf.Tensor
    basis: tf.Tensor

    @property
    def eigenvalues(self) -> tf.Tensor:
        """Returns the eigenvalues, complex `(batch, n)`, unordered."""
        return tf.linalg.diag_part(self.triangle)

    def eigenvectors(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the unit right eigenvector and the sensitivity of one eigenvalue.

        Args:
            index: Integer tensor `(batch,)`. Index of the eigenvalue in each matrix.

        Returns:
            The eigenvector, complex `(batch, n)`, and the sensitivity 1 / |y^H x|,
            `(batch,)`, with the unit left and right eigenvectors y and x. An error E of
            the matrix changes the eigenvalue by up to |E| times the sensitivity.
        """
        size = tf.shape(self.triangle)[1]
        position, index = tf.range(size), index[:, None]
        is_it = tf.cast(position == index, self.triangle.dtype)
        value = tf.reduce_sum(self.eigenvalues * is_it, axis=1, keepdims=True)
        identity = tf.eye(size, dtype=self.triangle.dtype)
        shifted = _away_from_zero(self.triangle - value[..., None] * identity)
        vectors = []
        # The right eigenvector is nonzero above the eigenvalue, the left one below it.
        for part, adjoint in ((position < index, False), (position > index, True)):
            block = part[:, :, None] & part[:, None, :]
            coupling = tf.linalg.matvec(self.triangle, is_it, adjoint_a=adjoint)
            vector = tf.linalg.triangular_solve(
                tf.where(block, shifted, identity),
                tf.where(part, -coupling, is_it)[..., None],
                lower=False,
                adjoint=adjoint,
            )
            vectors.append(vector[..., 0])
        right, left = vectors
        norm = _norm(right)
        right = tf.linalg.matvec(self.basis, right / tf.cast(norm, right.dtype))
        return right, (norm * _norm(left))[:, 0]


class Spectrum(NamedTuple):
    """The eigenvalues of every matrix of a batch, like `Schur` but from TensorFlow.

    Attributes:
        matrix: Complex `(batch, n, n)`.
        eigenvalues: Complex `(batch, n)`, unordered.
    """

    matrix: tf.Tensor
    eigenvalues: tf.Tensor

    def eigenvectors(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Schur.eigenvectors`.

        The eigenvectors are the singular vectors of A - lambda I whose singular value
        is zero up to rounding. A singular value decomposition always exists.
        """
        value = tf.gather(self.eigenvalues, index, axis=1, batch_dims=1)
        identity = tf.eye(tf.shape(self.matrix)[1], dtype=self.matrix.dtype)
        with tf.device("CPU:0"):
            _, left, right = tf.linalg.svd(
                self.matrix - value[:, None, None] * identity
            )
        left, right = left[..., -1], right[..., -1]
        overlap = tf.abs(tf.reduce_sum(tf.math.conj(left) * right, axis=1))
        return right, 1 / tf.maximum(overlap, np.finfo("float64").eps)


def eigenvalues(matrix: tf.Tensor) -> "Schur | Spectrum":
    """Returns the eigenvalues of real upper Hessenberg matrices, `(batch, n, n)`.

    XLA does not support `tf.linalg.eigvals`, which is 40 times as fast as `schur`.
    """
    if is_compiled_by_xla():
        return schur(matrix)
    matrix = tf.cast(matrix, tf.complex128)
    with tf.device("CPU:0"):
        return Spectrum(matrix, tf.linalg.eigvals(matrix))


def schur(matrix: tf.Tensor) -> Schur:
    """Returns the `Schur` form of real upper Hessenberg matrices, `(batch, n, n)`.

    Runs the QR iteration in double precision with Wilkinson's shift.
    """
    # A GPU would factorize the small matrices of a batch one by one.
    with tf.device("CPU:0"):
        triangle = tf.cast(matrix, tf.complex128)
        negligible = np.finfo("float64").eps * tf.norm(
            tf.abs(triangle), axis=(1, 2), keepdims=True
        )
        identity = tf.eye(tf.shape(matrix)[1], dtype=tf.complex128)

        def step(
            i: tf.Tensor, triangle: tf.Tensor, basis: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            size = _unfinished(triangle, negligible)
            part = tf.range(tf.shape(triangle)[1]) < size[:, None]
            block = part[:, :, None] & part[:, None, :]
            shift = _shift(i, triangle, size)[:, None, None]
            shifted = tf.where(block, triangle - shift * identity, identity)
            rotation = tf.linalg.qr(shifted).q
            rotated = tf.matmul(rotation, triangle @ rotation, adjoint_a=True)
            is_open = (size > 0)[:, None, None]
            return (
                i + 1,
                tf.where(is_open, tf.linalg.band_part(rotated, 1, -1), triangle),
                tf.where(is_open, basis @ rotation, basis),
            )

        _, triangle, basis = tf.while_loop(
            lambda i, triangle, _: tf.reduce_any(_unfinished(triangle, negligible) > 0),
            step,
            (1, triangle, identity + tf.zeros_like(triangle)),
            maximum_iterations=_STEPS_PER_ROW * matrix.shape[1],
        )
        failed = (_unfinished(triangle, negligible) > 0)[:, None, None]
        nan = tf.constant(float("nan"), tf.complex128)
        triangle = tf.where(failed, nan, tf.linalg.band_part(triangle, 0, -1))
        return Schur(triangle, basis)


def _unfinished(triangle: tf.Tensor, negligible: tf.Tensor) -> tf.Tensor:
    """Returns the number of leading rows that are not triangular yet, `(B,)`."""
    below = tf.abs(tf.linalg.diag_part(triangle, k=-1))  # (B, n - 1)
    rows = tf.range(2, tf.shape(triangle)[1] + 1)
    return tf.reduce_max(tf.where(below > negligible[..., 0], rows, 0), axis=1)


def _shift(i: tf.Tensor, triangle: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns Wilkinson's shift: the eigenvalue of the last two unfinished rows that is
    nearer to the last entry."""
    rows = tf.maximum(size[:, None] - [2, 1], 0)
    corner = tf.gather(triangle, rows, axis=1, batch_dims=1)
    corner = tf.gather(corner, rows, axis=2, batch_dims=1)
    (a, b), (c, d) = (tf.unstack(row, axis=1) for row in tf.unstack(corner, axis=1))
    half = (a - d) / 2
    root = tf.sqrt(half * half + b * c)
    is_smaller = tf.math.real(tf.math.conj(half) * root) < 0
    shift = d - tf.math.divide_no_nan(b * c, half + tf.where(is_smaller, -root, root))
    exceptional = d + tf.cast(tf.abs(c), c.dtype)
    return tf.where(i % _EXCEPTIONAL == 0, exceptional, shift)


def _away_from_zero(triangle: tf.Tensor) -> tf.Tensor:
    """Bounds the diagonal from below by the rounding error of the matrix."""
    size = tf.abs(triangle)
    bound = np.finfo("float64").eps * tf.reduce_max(size, axis=(1, 2))[:, None]
    bound = tf.maximum(bound, np.finfo("float64").tiny)
    diagonal = tf.linalg.diag_part(triangle)
    bounded = tf.where(
        tf.abs(diagonal) < bound, tf.cast(bound, diagonal.dtype), diagonal
    )
    return tf.linalg.set_diag(triangle, bounded)


def _norm(vector: tf.Tensor) -> tf.Tensor:
    return tf.norm(tf.abs(vector), axis=1, keepdims=True)
