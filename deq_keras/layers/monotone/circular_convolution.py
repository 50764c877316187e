"""Convolutions of maps whose borders meet, and their inverses in Fourier space.

Kernels have 3 x 3 taps and are `(3, 3, channels, filters)`. A spectrum holds, for each
frequency, the matrix that acts on the channels there, `(height, width, channels,
filters)`: that of a product of convolutions is the product of theirs.
"""

import tensorflow as tf
from keras import ops


def convolve(maps, kernel, strides=1):
    """Convolves maps `(batch, height, width, channels)`, of even sides for `strides=2`.

    Returns:
        Tensor `(batch, height / strides, width / strides, filters)`.
    """
    maps = ops.concatenate([maps[:, -1:], maps, maps[:, :1]], axis=1)
    maps = ops.concatenate([maps[:, :, -1:], maps, maps[:, :, :1]], axis=2)
    return ops.conv(maps, kernel, strides=strides, padding="valid")


def convolve_transpose(maps, kernel, strides=1):
    """The transpose of `convolve`: maps `(batch, height / strides, width / strides,
    filters)` become `(batch, height, width, channels)`."""
    maps = ops.conv_transpose(maps, kernel, strides=strides, padding="valid")
    maps = _folded(maps, strides)
    return ops.swapaxes(_folded(ops.swapaxes(maps, 1, 2), strides), 1, 2)


def _folded(maps, strides):
    """Adds what is beyond an end of the first axis of maps to the other end."""
    first, last = maps[:, :1], maps[:, -1:]
    if strides == 2:
        return ops.concatenate([maps[:, 1:-1], last + first], axis=1)
    inner = maps[:, 2:-2]
    return ops.concatenate([maps[:, 1:2] + last, inner, maps[:, -2:-1] + first], axis=1)


def spectrum(kernel, height, width):
    """Returns the spectrum `(height, width, channels, filters)` of a convolution."""
    taps = tf.transpose(kernel, (2, 3, 0, 1))
    placed = tf.pad(taps, ((0, 0), (0, 0), (0, height - 3), (0, width - 3)))
    placed = tf.roll(placed, (-1, -1), (2, 3))  # The middle tap is at 0.
    # A convolution of layers is a correlation: hence the conjugate.
    transformed = tf.math.conj(tf.signal.fft2d(_as_complex(placed)))
    return tf.transpose(transformed, (2, 3, 0, 1))


def adjoint(matrices):
    """Returns the spectrum of the transpose."""
    return tf.linalg.adjoint(matrices)


def identity_like(matrices):
    """Returns the matrix `(channels, channels)` of the identity."""
    return tf.eye(matrices.shape[-1], dtype=matrices.dtype)


def inverse(matrices):
    """Returns the spectrum of the inverse, by real matrices: XLA inverts no others."""
    real, imaginary = tf.math.real(matrices), tf.math.imag(matrices)
    rows = tf.concat([real, imaginary], axis=-1), tf.concat([-imaginary, real], axis=-1)
    channels = matrices.shape[-1]
    inverted = tf.linalg.inv(tf.concat(rows, axis=-2))[..., :channels, :]
    return tf.complex(inverted[..., :channels], inverted[..., channels:])


def half(width):
    """Returns how many columns of a spectrum real maps of a width have."""
    return width // 2 + 1


def decimated(matrices):
    """Returns the spectrum, on a grid of half the sides, of the matrices on a whole one
    between keeping each second position and filling in zeros: the mean over the four
    frequencies that the smaller grid does not tell apart."""
    height, width, *channels = matrices.shape
    folded = tf.reshape(matrices, [2, height // 2, 2, width // 2, *channels])
    return tf.reduce_mean(folded, axis=(0, 2))


def filtered(maps, matrices):
    """Applies a spectrum to maps.

    Args:
        maps: Tensor `(batch, height, width, channels)`.
        matrices: Spectrum, of which the first `half(width)` columns are enough: the
            others are their conjugates.

    Returns:
        Tensor `(batch, height, width, filters)`.
    """
    _, height, width, _ = maps.shape
    transformed = tf.signal.rfft2d(tf.transpose(maps, (0, 3, 1, 2)))  # (B, C, H, W')
    by_frequency = tf.transpose(transformed, (2, 3, 0, 1))  # (H, W', B, C)
    product = by_frequency @ matrices[:, : half(width)]  # (H, W', B, D)
    product = tf.transpose(product, (2, 3, 0, 1))  # (B, D, H, W')
    return tf.transpose(tf.signal.irfft2d(product, [height, width]), (0, 2, 3, 1))


def _as_complex(tensor):
    is_double = tensor.dtype == tf.float64
    return tf.cast(tensor, tf.complex128 if is_double else tf.complex64)
