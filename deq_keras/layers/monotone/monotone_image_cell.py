"""Base class of monotone cells with circular convolutions."""

import keras
import numpy as np
from keras import ops

from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM
from deq_keras.layers.monotone.circular_convolution import spectrum
from deq_keras.layers.monotone.monotone_cell import MonotoneCell


class MonotoneImageCell(MonotoneCell):
    """Base class of monotone cells for images: provides U and the border of the state.

    The state is one position wider than the image at each side, and zero there, so that
    opposite sides do not interact through the circular convolutions.

    Args:
        filters: Positive integer. Channels of U x.
        num_halvings: Non-negative integer. Number of times the image is halved.
        m: Positive float. See `MonotoneCell`.
        activation: See `MonotoneCell`.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(self, filters, num_halvings, m, activation, **kwargs):
        super().__init__(m, activation, **kwargs)
        self.num_halvings = num_halvings
        self.projection = keras.layers.Conv2D(
            filters,
            3,
            padding="same",
            kernel_initializer=FAN_IN_UNIFORM,
            name="projection",
            dtype=self.solver_dtype,
        )

    def build(self, input_shape):
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                f"Cell '{self.name}' expects images (batch, height, width, channels) "
                "of a static size. Received: inputs of shape "
                f"{tuple(input_shape)}."
            )
        self.image_size = tuple(input_shape[1:3])
        divisor = 2**self.num_halvings
        if any(side % divisor for side in self.image_size):
            raise ValueError(
                f"Cell '{self.name}' has {self.num_halvings + 1} tiers, each half as "
                "large as the one before, and expects images whose sides are multiples "
                f"of {divisor}. Pad or resize them, or use fewer tiers. Received: "
                f"inputs of shape {tuple(input_shape)}."
            )
        self.projection.build(input_shape)

    def projected(self, inputs):
        """Returns U x + b on the grid of the state."""
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.projection(_with_border(inputs))

    def size_of_tier(self, index):
        """Returns height and width of a tier of the state. Tier 0 is the finest."""
        return tuple(side // 2**index + 2 for side in self.image_size)

    def constrained(self, leaf):
        return _with_border(leaf[:, 1:-1, 1:-1])

    def input_norm(self):
        matrices = spectrum(self.projection.kernel, *self.size_of_tier(0))
        return float(np.linalg.norm(matrices, 2, axis=(-2, -1)).max())


def _with_border(maps):
    return ops.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
