"""A convolution that pads all sides equally, and checks of its window."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_count


def check_side(name: str, value: Any) -> int:
    """Returns the side of a window, a positive odd integer.

    An odd window has a center and is padded equally on both sides, as in PyTorch. An
    even window would shift the map by half a position.
    """
    side = check_count(name, value)
    if side % 2 == 0:
        raise ValueError(
            f"`{name}` must be odd, so that both sides are padded alike. Received: "
            f"{name}={side}."
        )
    return side


def check_sides(name: str, value: Any) -> Any:
    """Returns a positive odd integer, or a list or tuple of two of them, as given."""
    if not isinstance(value, (list, tuple)):
        return check_side(name, value)
    if len(value) != 2:
        raise ValueError(
            f"`{name}` must be an odd integer or a pair of them. Received: "
            f"{name}={value!r}."
        )
    sides = [check_side(f"{name}[{index}]", side) for index, side in enumerate(value)]
    return sides if isinstance(value, list) else tuple(sides)


@keras.saving.register_keras_serializable(package="deq_keras")
class SymmetricConv2D(keras.layers.Conv2D):
    """2D convolution that pads all sides equally, at any stride.

    With `padding="same"` and stride 2, Keras pads maps of even size on one side only.
    This layer pads `kernel_size // 2` zeros on every side, like PyTorch's
    `padding=kernel_size // 2`, and is therefore compatible with PyTorch's weights.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive odd integer, or a pair of them. Side of the window, or
            height and width.
        **kwargs: Other arguments of `keras.layers.Conv2D`, except `padding` and
            `data_format`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, new_height, new_width, filters)`, the sizes of the input divided by
        the strides and rounded up.

    Raises:
        ValueError: If the side of the window is even, or another padding or data format
            is passed.

    Example:

    >>> layer = SymmetricConv2D(4, 3, strides=2)
    >>> tuple(layer(keras.ops.ones((2, 8, 8, 5))).shape)
    (2, 4, 4, 4)
    """

    def __init__(
        self, filters: int, kernel_size: int | tuple[int, int], **kwargs: Any
    ) -> None:
        fixed = {"padding": "same", "data_format": "channels_last"}
        for name, value in fixed.items():
            given = kwargs.pop(name, None)
            if given not in (None, value):
                raise ValueError(
                    f"`{name}` of this layer can only be '{value}'. Leave it out. "
                    f"Received: {name}={given!r}."
                )
        sides = check_sides("kernel_size", kernel_size)
        super().__init__(filters, sides, **fixed, **kwargs)

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        # Without strides, padding "same" is symmetric and needs no copy.
        if max(self.strides) == 1:
            return super().convolution_op(inputs, kernel)
        sides = [(size // 2, size // 2) for size in self.kernel_size]
        return ops.conv(
            ops.pad(inputs, [(0, 0), *sides, (0, 0)]),
            kernel,
            strides=list(self.strides),
            padding="valid",
            data_format="channels_last",
        )
