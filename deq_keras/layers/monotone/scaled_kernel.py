"""Convolution kernels with a learned direction and norm."""

import keras
from keras import ops

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

    def __init__(self, channels, filters, **kwargs):
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

    def kernel(self):
        """Returns the kernel `(3, 3, channels, filters)`, in float32 or float64."""
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        direction = ops.cast(self.direction, dtype)
        norm = ops.sqrt(ops.maximum(ops.sum(direction**2), _SMALLEST_NORM**2))
        return ops.cast(self.scale, dtype) / norm * direction
