"""Orthonormal bases of Krylov spaces, one per sample."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# A remainder after projection below this many rounding units counts as zero.
_ROUNDING = 10


class Arnoldi(NamedTuple):
    """Arnoldi decomposition A V = V H + v h^T, with the vectors of V as rows.

    Attributes:
        size: Int32 scalar. Number of vectors that span the space.
        basis: Tensor `(batch, slots + 1, features)`. V, followed by v. Unused slots are
            zero, and so is v if the space is invariant.
        coefficients: Tensor `(batch, slots + 1, slots)`. H, with h below it. Unused
            entries are zero. Non-finite if a product was non-finite.
    """

    size: tf.Tensor
    basis: tf.Tensor
    coefficients: tf.Tensor

    @property
    def projection(self) -> tf.Tensor:
        """Returns H, upper Hessenberg matrices `(batch, slots, slots)`."""
        square = self.coefficients[:, :-1]
        is_inside = tf.range(tf.shape(square)[1]) < self.size
        return tf.where(is_inside[:, None], square, 0.0)

    @property
    def link(self) -> tf.Tensor:
        """Returns h, `(batch, slots)`."""
        return tf.gather(self.coefficients, self.size, axis=1)

    def extend(self, product: Callable[[tf.Tensor], tf.Tensor]) -> "Arnoldi":
        """Returns the space extended by one vector.

        Args:
            product: Function that multiplies each row of a `(batch, features)` matrix
                by A.
        """
        image = product(tf.gather(self.basis, self.size, axis=1))
        size = _norm(image)
        vector, column = image, 0.0
        # Orthogonalize twice: once is inaccurate if the image is nearly in the space.
        for _ in range(2):
            overlap = tf.linalg.matvec(self.basis, vector)
            vector -= tf.linalg.matvec(self.basis, overlap, transpose_a=True)
            column += overlap
        length = _norm(vector)
        eps = np.finfo(image.dtype.as_numpy_dtype).eps
        is_rounding = length <= _ROUNDING * eps * size
        length = tf.where(is_rounding, tf.zeros_like(length), length)
        slot = tf.range(tf.shape(self.basis)[1]) == self.size + 1
        column = tf.where(slot, length, column)
        place = tf.range(tf.shape(self.coefficients)[2]) == self.size
        return Arnoldi(
            self.size + 1,
            tf.where(slot[:, None], _unit(vector, length)[:, None], self.basis),
            tf.where(place, column[..., None], self.coefficients),
        )

    def restart(self, weights: tf.Tensor, num_kept: int) -> "Arnoldi":
        """Returns the Krylov space of a vector of this space, without a new product.

        Args:
            weights: Tensor `(batch, slots)`. Coordinates of the vector. Only the first
                `slots - num_kept + 1` are nonzero.
            num_kept: Positive integer. Number of vectors that span the new space.
        """
        # 1. A vector of the space is V w, and A V w = V (H w) as long as the last
        #    coordinate of w is zero: A acts on coordinates like the small matrix H.
        # 2. Run the iteration on coordinates: products with H instead of A.
        # 3. Map the new basis back to vectors, and pad it to the old size.
        slots = self.coefficients.shape[2]
        matrix = tf.cast(self.coefficients, weights.dtype)
        (inner,) = tf.while_loop(
            lambda inner: inner.size < num_kept,
            lambda inner: [
                # The last coordinate, whose image is unknown, is still zero.
                inner.extend(lambda w: tf.linalg.matvec(matrix, w[:, :slots]))
            ],
            [begin(tf.pad(weights, [[0, 0], [0, 1]]), num_kept)],
        )
        dtype, missing = self.basis.dtype, slots - num_kept
        basis = tf.matmul(tf.cast(inner.basis, dtype), self.basis)
        coefficients = tf.cast(inner.coefficients, dtype)
        return Arnoldi(
            size=inner.size,
            basis=tf.pad(basis, [[0, 0], [0, missing], [0, 0]]),
            coefficients=tf.pad(coefficients, [[0, 0], [0, missing], [0, missing]]),
        )


def begin(start: tf.Tensor, slots: int) -> Arnoldi:
    """Returns an empty space with room for `slots` vectors.

    Args:
        start: Tensor `(batch, features)`. First vector of each sample, of any norm.
        slots: Positive integer. Maximum number of vectors.
    """
    first = _unit(start, _norm(start))[:, None]
    row = tf.zeros([tf.shape(start)[0], slots + 1, 1], start.dtype)
    return Arnoldi(
        size=tf.constant(0),
        basis=tf.pad(first, [[0, 0], [0, slots], [0, 0]]),
        coefficients=tf.ensure_shape(
            tf.tile(row, [1, 1, slots]), [start.shape[0], slots + 1, slots]
        ),
    )


def _norm(matrix: tf.Tensor) -> tf.Tensor:
    """Returns the Euclidean norm of each row, `(B, 1)`, without over- or underflow."""
    peak = tf.reduce_max(tf.abs(matrix), axis=1, keepdims=True)
    peak = tf.where(peak > 0, peak, 1.0)
    return peak * tf.norm(matrix / peak, axis=1, keepdims=True)


def _unit(vector: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    is_there = length > 0
    return tf.where(is_there, vector / tf.where(is_there, length, 1.0), 0.0)
