"""The kernels and operators of one tier of maps of a monotone convolutional cell."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from deq_keras.core.structure import wide_dtype
from deq_keras.layers.circular_convolution import (
    apply_matrices,
    convolve,
    convolve_transpose,
    decimate,
    gram,
    spectrum,
    transpose,
)
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM

# Lower bound of the norm, which avoids division by zero.
_SMALLEST_NORM = 1e-12


class ScaledKernel(keras.layers.Layer):
    """A 3 x 3 kernel scale * v / |v|, with the norm over all of v.

    Args:
        channels: Positive integer. Input channels.
        filters: Positive integer. Output channels.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(self, channels: int, filters: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.direction = self.add_weight(
            (3, 3, channels, filters),
            initializer=FAN_IN_UNIFORM,
            autocast=False,
            name="direction",
        )
        self.scale = self.add_weight(
            (), initializer="ones", autocast=False, name="scale"
        )
        self.built = True

    def kernel(self) -> Any:
        """Returns the kernel `(3, 3, channels, filters)`, in float32 or float64."""
        dtype = wide_dtype(self.compute_dtype)
        direction = ops.cast(self.direction, dtype)
        norm = ops.sqrt(ops.maximum(ops.sum(direction**2), _SMALLEST_NORM**2))
        return ops.cast(self.scale, dtype) / norm * direction


class Tier(keras.layers.Layer):
    """Builds the operator W = (1 - m) I - s A^T A + B - B^T - C^T C on one tier.

    C is a convolution with stride 2 to the next tier. The last tier has only A and B.
    The sign s is 1, or -1 for a single tier.

    Args:
        filters: Positive integer. Channels of the tier.
        next_filters: Positive integer or `None`. Channels of the next tier, if any.
        m: Positive float. See `MonotoneCell`.
        sign: `1` or `-1`. Defaults to `1`.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(
        self,
        filters: int,
        next_filters: int | None,
        m: float,
        sign: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.m = m
        self.sign = sign
        self.symmetric, self.skew = (
            ScaledKernel(filters, filters, name=name, dtype=self.dtype_policy)
            for name in ("symmetric", "skew")
        )
        self.down = None
        if next_filters is not None:
            self.down = ScaledKernel(
                filters, next_filters, name="down", dtype=self.dtype_policy
            )
        self.built = True

    def operator(self, height: int, width: int) -> dict[str, Any]:
        """Returns the tensors that define W on maps of a size.

        Returns:
            Dict of `"spectrum"`, of W without its last term; `"symmetric"`, the kernel
            A; and, except for the last tier, `"down"`, the kernel C.
        """
        symmetric, skew = self.symmetric.kernel(), self.skew.kernel()
        kernel = ops.pad(skew - transpose(skew), ((1, 1), (1, 1), (0, 0), (0, 0)))
        kernel -= self.sign * gram(symmetric)
        matrices = spectrum(kernel, height, width)
        identity = tf.eye(matrices.shape[-1], dtype=matrices.dtype)
        operator = {
            "spectrum": (1.0 - self.m) * identity + matrices,
            "symmetric": symmetric,
        }
        if self.down is not None:
            operator["down"] = self.down.kernel()
        return operator


def linear(maps: Any, operator: Any, from_above: Any = None) -> Any:
    """Applies W to the maps of a tier.

    Args:
        maps: Tensor `(batch, height, width, filters)`.
        operator: Dict. Result of `Tier.operator`.
        from_above: Optional tensor like `maps`. C applied to the previous tier, for
            the term -2 A^T C.
    """
    product = apply_matrices(maps, operator["spectrum"])
    if from_above is not None:
        product -= 2.0 * convolve_transpose(from_above, operator["symmetric"])
    if "down" in operator:
        lower = convolve(maps, operator["down"], strides=2)
        product -= convolve_transpose(lower, operator["down"], strides=2)
    return product


def resolvent(
    operator: Any, alpha: float, height: int, width: int
) -> Callable[[Any], Any]:
    """Returns the function from maps z to (I + alpha (I - W))^-1 z.

    Args:
        operator: Dict. Result of `Tier.operator`.
        alpha: Positive float. Step size.
        height: Positive integer. Height of the maps.
        width: Positive integer. Width of the maps.
    """
    matrices = operator["spectrum"]
    identity = tf.eye(matrices.shape[-1], dtype=matrices.dtype)
    inverted = tf.linalg.inv((1.0 + alpha) * identity - alpha * matrices)
    if "down" in operator:
        return _woodbury(inverted, operator["down"], alpha, height, width)
    return lambda maps: apply_matrices(maps, inverted)


def _woodbury(
    inverted: Any, kernel: Any, alpha: float, height: int, width: int
) -> Callable[[Any], Any]:
    """Returns the function z -> (D + alpha C^T C)^-1 z, given the spectrum of D^-1.

    C skips positions, which mixes frequencies, but C D^-1 C^T is a convolution:

        (D + alpha C^T C)^-1 = D^-1 - alpha D^-1 C^T (I + alpha C D^-1 C^T)^-1 C D^-1
    """
    c = spectrum(kernel, height, width)
    between = decimate(tf.matmul(c, inverted, transpose_a=True) @ c, width)
    identity = tf.eye(between.shape[-1], dtype=between.dtype)
    core = tf.linalg.inv(identity + alpha * between)

    def resolvent(maps: Any) -> Any:
        maps = apply_matrices(maps, inverted)
        lower = apply_matrices(convolve(maps, kernel, strides=2), core)
        correction = convolve_transpose(lower, kernel, strides=2)
        return maps - alpha * apply_matrices(correction, inverted)

    return resolvent
