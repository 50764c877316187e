"""Circular convolutions and their inverses in Fourier space.

Kernels have shape `(3, 3, channels, filters)`. A spectrum stores one matrix per
frequency, which acts on rows of channels. A composition has the product of the spectra
as its spectrum; inverses and transposes act on each matrix.

A complex matrix P + i Q is stored as the real block matrix [[P, Q], [-Q, P]], which
multiplies fast and which XLA can invert, so a spectrum has shape
`(height, width, 2 channels, 2 filters)`.
"""

from typing import Any

import tensorflow as tf
from keras import ops


def convolve(maps: Any, kernel: Any, strides: int = 1) -> Any:
    """Convolves maps `(batch, height, width, channels)`; `strides=2` needs even sides.

    Returns:
        Tensor `(batch, height / strides, width / strides, filters)`.
    """
    maps = ops.concatenate([maps[:, -1:], maps, maps[:, :1]], axis=1)
    maps = ops.concatenate([maps[:, :, -1:], maps, maps[:, :, :1]], axis=2)
    return ops.conv(maps, kernel, strides=strides, padding="valid")


def convolve_transpose(maps: Any, kernel: Any, strides: int = 1) -> Any:
    """Applies the transpose of `convolve`: maps `(batch, height / strides,
    width / strides, filters)` become `(batch, height, width, channels)`."""
    maps = ops.conv_transpose(maps, kernel, strides=strides, padding="valid")
    maps = _fold(maps, strides)
    return ops.swapaxes(_fold(ops.swapaxes(maps, 1, 2), strides), 1, 2)


def _fold(maps: Any, strides: Any) -> Any:
    """Adds the margin beyond each end of the first spatial axis to the other end."""
    first, last = maps[:, :1], maps[:, -1:]
    if strides == 2:
        return ops.concatenate([maps[:, 1:-1], last + first], axis=1)
    inner = maps[:, 2:-2]
    return ops.concatenate([maps[:, 1:2] + last, inner, maps[:, -2:-1] + first], axis=1)


def spectrum(kernel: Any, height: int, width: int) -> Any:
    """Returns the spectrum of a convolution on maps of size `(height, width)`."""
    taps = tf.transpose(kernel, (2, 3, 0, 1))
    placed = tf.pad(taps, ((0, 0), (0, 0), (0, height - 3), (0, width - 3)))
    placed = tf.roll(placed, (-1, -1), (2, 3))  # The middle tap is at 0.
    dtype = tf.complex128 if kernel.dtype == tf.float64 else tf.complex64
    transformed = tf.signal.fft2d(tf.cast(placed, dtype))
    matrices = tf.transpose(transformed, (2, 3, 0, 1))  # (H, W, C, D)
    # Convolution layers compute a correlation, which conjugates the matrices.
    real, imaginary = tf.math.real(matrices), -tf.math.imag(matrices)
    rows = _side_by_side(real, imaginary), _side_by_side(-imaginary, real)
    return tf.concat(rows, axis=-2)


def num_columns(width: int) -> int:
    """Returns the number of spectrum columns that real maps of a width need."""
    return width // 2 + 1


def decimate(matrices: Any) -> Any:
    """Returns the spectrum on a grid of half the size of: upsample with zeros, apply
    the matrices on the full grid, keep every second position. It is the mean over the
    four frequencies that alias on the smaller grid."""
    height, width, *channels = matrices.shape
    folded = tf.reshape(matrices, [2, height // 2, 2, width // 2, *channels])
    return tf.reduce_mean(folded, axis=(0, 2))


def apply_matrices(maps: Any, matrices: Any) -> Any:
    """Applies a spectrum to maps.

    Args:
        maps: Tensor `(batch, height, width, channels)`.
        matrices: Spectrum. Only its first `num_columns(width)` columns are used.

    Returns:
        Tensor `(batch, height, width, filters)`.
    """
    _, height, width, _ = maps.shape
    transformed = tf.signal.rfft2d(tf.transpose(maps, (0, 3, 1, 2)))  # (B, C, H, W')
    by_frequency = tf.transpose(transformed, (2, 3, 0, 1))  # (H, W', B, C)
    rows = _side_by_side(tf.math.real(by_frequency), tf.math.imag(by_frequency))
    product = rows @ matrices[:, : num_columns(width)]  # (H, W', B, 2 D)
    product = tf.complex(*tf.split(product, 2, axis=-1))
    product = tf.transpose(product, (2, 3, 0, 1))  # (B, D, H, W')
    return tf.transpose(tf.signal.irfft2d(product, [height, width]), (0, 2, 3, 1))


def _side_by_side(real: Any, imaginary: Any) -> Any:
    return tf.concat([real, imaginary], axis=-1)
