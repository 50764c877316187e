"""Discrete Fourier transforms as products of real matrices.

Unlike fast transforms, these products have gradients of every order, run under XLA in
every dtype, and exist in all export formats. Up to about 1,000 pixels a side, they cost
less than one convolution of a denoiser.
"""

from typing import Any

import numpy as np
from keras import ops


def fourier_transform(
    real: Any, imaginary: Any, is_inverse: bool = False
) -> tuple[Any, Any]:
    """Returns real and imaginary part of the orthonormal transform of images.

    Args:
        real: Tensor `(batch, height, width, channels)`.
        imaginary: Tensor like `real`.
        is_inverse: Boolean. Whether to invert the transform. Defaults to `False`.

    Returns:
        Two tensors like `real`. Frequency 0 is at height 0 and width 0.
    """
    real, imaginary = (ops.transpose(x, (0, 3, 1, 2)) for x in (real, imaginary))
    for _ in range(2):  # Transforms the last axis, and exchanges height and width.
        index = np.arange(real.shape[-1])
        angle = 2 * np.pi * np.outer(index, index) / len(index)
        cos, sin = (
            ops.cast(table / np.sqrt(len(index)), real.dtype)
            for table in (np.cos(angle), np.sin(angle) * (1 if is_inverse else -1))
        )
        real, imaginary = (
            ops.swapaxes(part, 2, 3)
            for part in (
                ops.matmul(real, cos) - ops.matmul(imaginary, sin),
                ops.matmul(real, sin) + ops.matmul(imaginary, cos),
            )
        )
    return ops.transpose(real, (0, 2, 3, 1)), ops.transpose(imaginary, (0, 2, 3, 1))


def apply_spectrum(real: Any, imaginary: Any, spectrum: Any) -> tuple[Any, Any]:
    """Multiplies the frequencies of images by real numbers.

    Args:
        real: Tensor `(batch, height, width, channels)`.
        imaginary: Tensor like `real`.
        spectrum: Tensor `(height, width)`. If it is equal at opposite frequencies, real
            images remain real.

    Returns:
        Two tensors like `real`.
    """
    parts = fourier_transform(real, imaginary)
    real, imaginary = (spectrum[..., None] * part for part in parts)
    return fourier_transform(real, imaginary, is_inverse=True)


def inverse_spectrum(power: np.ndarray, mu: Any) -> Any:
    """Returns 1 / (power + mu), in the dtype of mu if it is a tensor.

    Args:
        power: Array `(height, width)`.
        mu: Positive float or scalar tensor.
    """
    return 1 / (ops.cast(power, getattr(mu, "dtype", "float64")) + mu)
