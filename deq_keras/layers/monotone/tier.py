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
    num_columns,
    spectrum,
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
    """Builds the kernels of W = (1 - m) I - s A^T A + B - B^T - C^T C on one tier.

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

    def kernels(self) -> dict[str, Any]:
        """Returns a dict of the kernels: `"symmetric"`, A; `"skew"`, B - B^T; and
        `"down"`, C."""
        b = self.skew.kernel()
        transposed = ops.swapaxes(ops.flip(b, (0, 1)), 2, 3)
        kernels = {"symmetric": self.symmetric.kernel(), "skew": b - transposed}
        if self.down is not None:
            kernels["down"] = self.down.kernel()
        return kernels

    def linear(self, maps: Any, kernels: Any, from_above: Any = None) -> Any:
        """Applies W to the maps of this tier.

        Args:
            maps: Tensor `(batch, height, width, filters)`.
            kernels: Dict. Result of `kernels`.
            from_above: Optional tensor like `maps`. C applied to the previous tier, for
                the term -2 A^T C.
        """
        inner = convolve(maps, kernels["symmetric"])
        if from_above is not None:
            inner = inner + 2.0 * from_above
        product = (1.0 - self.m) * maps + convolve(maps, kernels["skew"])
        symmetric = convolve_transpose(inner, kernels["symmetric"])
        product = product - self.sign * symmetric
        if "down" in kernels:
            lower = convolve(maps, kernels["down"], strides=2)
            product = product - convolve_transpose(lower, kernels["down"], strides=2)
        return product

    def resolvent(
        self, kernels: Any, alpha: float, height: int, width: int
    ) -> Callable[[Any], Any]:
        """Returns the function from maps z to (I + alpha (I - W))^-1 z.

        Args:
            kernels: Dict. Result of `kernels`.
            alpha: Positive float. Step size.
            height: Positive integer. Height of the maps.
            width: Positive integer. Width of the maps.
        """
        columns = width if "down" in kernels else num_columns(width)
        a = spectrum(kernels["symmetric"], height, width)[:, :columns]
        skew = spectrum(kernels["skew"], height, width)[:, :columns]
        identity = tf.eye(a.shape[-1], dtype=a.dtype)
        symmetric = self.sign * tf.matmul(a, a, transpose_b=True)
        inverted = tf.linalg.inv(
            (1.0 + alpha * self.m) * identity + alpha * (symmetric - skew)
        )
        if "down" in kernels:
            return _woodbury(inverted, kernels["down"], alpha, height, width)
        return lambda maps: apply_matrices(maps, inverted)


def _woodbury(
    inverted: Any, kernel: Any, alpha: float, height: int, width: int
) -> Callable[[Any], Any]:
    """Returns the function z -> (D + alpha C^T C)^-1 z, given the spectrum of D^-1.

    C skips positions, which mixes frequencies, but C D^-1 C^T is a convolution:

        (D + alpha C^T C)^-1 = D^-1 - alpha D^-1 C^T (I + alpha C D^-1 C^T)^-1 C D^-1
    """
    c = spectrum(kernel, height, width)
    between = decimate(tf.matmul(c, inverted, transpose_a=True) @ c)
    identity = tf.eye(between.shape[-1], dtype=between.dtype)
    core = tf.linalg.inv(identity + alpha * between)

    def resolvent(maps: Any) -> Any:
        maps = apply_matrices(maps, inverted)
        lower = apply_matrices(convolve(maps, kernel, strides=2), core)
        correction = convolve_transpose(lower, kernel, strides=2)
        return maps - alpha * apply_matrices(correction, inverted)

    return resolvent
