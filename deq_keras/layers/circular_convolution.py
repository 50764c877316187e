"""Circular convolutions and their inverses in Fourier space.

Kernels have shape `(size, size, channels, filters)`, with an odd size. A spectrum
stores one matrix per frequency, which acts on rows of channels. A composition has the
product of the spectra as its spectrum; inverses and transposes act on each matrix.

A complex matrix P + i Q is stored as the real block matrix [[P, Q], [-Q, P]], which
multiplies fast and which XLA can invert. Real maps need only the first `width // 2 + 1`
columns of frequencies, so a spectrum has shape
`(height, width // 2 + 1, 2 channels, 2 filters)`. Fourier transforms of maps are
products with real matrices: at sides of tens of pixels they take less time than
`tf.signal`, above all in gradients.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

_LAST = {"data_format": "channels_last"}


def convolve(maps: Any, kernel: Any, strides: int = 1) -> Any:
    """Convolves maps `(batch, height, width, channels)` with a 3 x 3 kernel.

    `strides=2` needs even sides.

    Returns:
        Tensor `(batch, height / strides, width / strides, filters)`.
    """
    for axis in (1, 2):
        # The gradient of a split is a concatenation, which is cheaper than of slices.
        first, inner, last = tf.split(maps, [1, maps.shape[axis] - 2, 1], axis)
        maps = tf.concat([last, first, inner, last, first], axis)
    return ops.conv(maps, kernel, strides=strides, padding="valid", **_LAST)


def convolve_transpose(maps: Any, kernel: Any, strides: int = 1) -> Any:
    """Applies the transpose of `convolve`: maps `(batch, height / strides,
    width / strides, filters)` become `(batch, height, width, channels)`."""
    maps = ops.conv_transpose(maps, kernel, strides=strides, padding="valid", **_LAST)
    for axis in (1, 2):
        # Add the margin beyond each end to the other end.
        size = maps.shape[axis]
        if strides == 2:
            first, inner, last = tf.split(maps, [1, size - 2, 1], axis)
            maps = tf.concat([inner, last + first], axis)
        else:
            outer = tf.split(maps, [1, 1, size - 4, 1, 1], axis)
            first, second, inner, previous, last = outer
            maps = tf.concat([second + last, inner, previous + first], axis)
    return maps


def transpose(kernel: Any) -> Any:
    """Returns the kernel of the transposed convolution."""
    return ops.swapaxes(ops.flip(kernel, (0, 1)), 2, 3)


def gram(kernel: Any) -> Any:
    """Returns the 5 x 5 kernel of a 3 x 3 convolution followed by its transpose."""
    # Tap d is the sum of K[t] K[s]^T over all taps with t - s = d.
    images = ops.pad(
        ops.transpose(kernel, (2, 0, 1, 3)), ((0, 0), (2, 2), (2, 2), (0, 0))
    )
    taps = ops.conv(images, ops.swapaxes(kernel, 2, 3), padding="valid", **_LAST)
    return ops.transpose(taps, (1, 2, 0, 3))


def spectrum(kernel: Any, height: int, width: int) -> Any:
    """Returns the spectrum of a convolution on maps of size `(height, width)`."""
    size, _, channels, filters = kernel.shape
    columns = width // 2 + 1
    offsets = np.arange(size) - size // 2
    vertical = np.outer(np.arange(height), offsets) / height
    horizontal = np.outer(np.arange(columns), offsets) / width
    cycles = vertical[:, None, :, None] + horizontal[:, None]
    angles = 2.0 * np.pi * np.reshape(cycles, (-1, size**2))
    taps = tf.reshape(kernel, (size**2, -1))
    # Convolution layers compute a correlation, which conjugates the matrices.
    real, imaginary = (
        tf.reshape(
            tf.constant(wave, kernel.dtype) @ taps, (height, columns, channels, filters)
        )
        for wave in (np.cos(angles), np.sin(angles))
    )
    upper = tf.concat([real, imaginary], axis=-1)
    lower = tf.concat([-imaginary, real], axis=-1)
    return tf.concat([upper, lower], axis=-2)


def decimate(matrices: Any, width: int) -> Any:
    """Returns the spectrum on a grid of half the size of: upsample with zeros, apply
    the matrices on the full grid, keep every second position.

    Args:
        matrices: Spectrum on maps of an even height and width.
        width: Positive integer. Width of the maps.
    """
    height, columns, rows, filters = matrices.shape
    # The matrices of the further columns are the conjugates of those at the negative
    # frequency.
    rest = tf.reverse(matrices[:, 1 : width - columns + 1], (0, 1))
    conjugate = np.kron([[1, -1], [-1, 1]], np.ones((rows // 2, filters // 2)))
    rest = tf.roll(rest, 1, 0) * tf.constant(conjugate, matrices.dtype)
    matrices = tf.concat([matrices, rest], axis=1)
    # The mean over the four frequencies that alias on the smaller grid.
    folded = tf.reshape(matrices, [2, height // 2, 2, width // 2, rows, filters])
    return tf.reduce_mean(folded, axis=(0, 2))[:, : width // 4 + 1]


def apply_matrices(maps: Any, matrices: Any) -> Any:
    """Applies a spectrum to maps.

    Args:
        maps: Tensor `(batch, height, width, channels)`.
        matrices: Spectrum.

    Returns:
        Tensor `(batch, height, width, filters)`.
    """
    _, height, width, channels = maps.shape
    columns, filters = matrices.shape[1], matrices.shape[-1] // 2
    horizontal, vertical = _fourier_matrices(height, width, maps.dtype)
    # 1. Transform along the width, then along the height. The real and the imaginary
    # parts of a row of maps follow each other.
    maps = horizontal @ maps  # (batch, height, 2 columns, channels)
    maps = vertical @ tf.reshape(maps, (-1, 2 * height, columns * channels))
    # 2. Apply the matrices to the channels of each frequency.
    maps = tf.reshape(maps, (-1, height, 2, columns, channels))
    maps = tf.transpose(maps, (1, 3, 0, 2, 4))
    maps = tf.reshape(maps, (height, columns, -1, 2 * channels)) @ matrices
    # 3. Transform back. The transposes invert, up to the weights of the columns.
    maps = tf.reshape(maps, (height, columns, -1, 2, filters))
    maps = tf.transpose(maps, (2, 0, 3, 1, 4))
    maps = tf.reshape(maps, (-1, 2 * height, columns * filters))
    maps = tf.matmul(vertical, maps, transpose_a=True)
    maps = tf.reshape(maps, (-1, height, 2 * columns, filters))
    # A column stands for two frequencies, except at 0 and width / 2.
    counts = np.where(np.arange(columns) * 2 % width == 0, 1.0, 2.0) / (height * width)
    weights = tf.constant(np.tile(counts, 2)[:, None], maps.dtype)
    return tf.matmul(weights * horizontal, maps, transpose_a=True)


def _fourier_matrices(height: int, width: int, dtype: Any) -> tuple[Any, Any]:
    """Returns the matrices of the transforms along the width and the height.

    The rows of the first are the real parts of all columns of the spectrum, then the
    imaginary parts. The second one maps pairs of both parts to pairs.
    """
    cos, sin = _waves(width // 2 + 1, width)
    horizontal = np.concatenate([cos, -sin])
    cos, sin = _waves(height, height)
    pairs = np.array([[cos, sin], [-sin, cos]])  # (2 to, 2 from, height, height)
    vertical = pairs.transpose(2, 0, 3, 1).reshape(2 * height, 2 * height)
    return tf.constant(horizontal, dtype), tf.constant(vertical, dtype)


def _waves(num_frequencies: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    angles = 2.0 * np.pi * np.outer(np.arange(num_frequencies), np.arange(side)) / side
    return np.cos(angles), np.sin(angles)
