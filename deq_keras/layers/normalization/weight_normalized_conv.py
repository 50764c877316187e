"""Weight-normalized convolutions."""

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_counts
from deq_keras.layers.normalization.normalized_kernel import ConvolutionKernel
from deq_keras.layers.normalization.weight_normalization import WeightNormalization


class _WeightNormalizedConv(ConvolutionKernel, WeightNormalization):
    def __init__(self, filters, kernel_size, *args, **kwargs):
        is_one_side = not isinstance(kernel_size, (list, tuple))
        check = check_count if is_one_side else check_counts
        super().__init__(
            check_count("filters", filters),
            check("kernel_size", kernel_size),
            *args,
            **kwargs,
        )


@keras.saving.register_keras_serializable(package="deq_keras")
class WeightNormalizedConv1D(_WeightNormalizedConv, keras.layers.Conv1D):
    """1D convolution with a weight-normalized kernel.

    ```
    outputs = activation(conv(inputs, g * v / ||v||) + bias)
    ```

    with the norm over the taps and input channels of each filter, so `g` has the
    shape `(filters,)`.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive integer, or a tuple of one. Number of taps.
        **kwargs: Other arguments of `keras.layers.Conv1D`, with the same
            meaning. `kernel_regularizer` and `kernel_constraint` act on `v`.

    Call arguments:
        inputs: Tensor of shape `(batch, length, channels)`.
        kernel: Tensor of shape `(kernel_size, channels, filters)`, the value of
            `normalized_kernel()` at the start of a solve. Defaults to `None`, which
            computes it from the weights in this call.

    Input shape:
        `(batch, length, channels)`.

    Output shape:
        `(batch, new_length, filters)`.

    Example:

    >>> layer = WeightNormalizedConv1D(4, 3, padding="causal")
    >>> tuple(layer(keras.ops.ones((2, 10, 5))).shape)
    (2, 10, 4)

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """

    def convolution_op(self, inputs, kernel):
        if self.padding != "causal":
            return super().convolution_op(inputs, kernel)
        past = (self.dilation_rate[0] * (self.kernel_size[0] - 1), 0)
        length_axis = 1 if self.data_format == "channels_last" else 2
        padding = [past if axis == length_axis else (0, 0) for axis in range(3)]
        return ops.conv(
            ops.pad(inputs, padding),
            kernel,
            strides=list(self.strides),
            padding="valid",
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )


@keras.saving.register_keras_serializable(package="deq_keras")
class WeightNormalizedConv2D(_WeightNormalizedConv, keras.layers.Conv2D):
    """2D convolution with a weight-normalized kernel.

    ```
    outputs = activation(conv(inputs, g * v / ||v||) + bias)
    ```

    with the norm over the window and input channels of each filter, so `g` has
    the shape `(filters,)`.

    At stride 1 and with an odd kernel, `padding="same"` pads both sides equally, like
    PyTorch's `padding=kernel_size // 2`. At stride 2 and with even sizes, Keras pads
    one side more. Pad explicitly and use `"valid"` in this case.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive integer, or a tuple of two. Height and width of the
            window.
        **kwargs: Other arguments of `keras.layers.Conv2D`, with the same
            meaning. `kernel_regularizer` and `kernel_constraint` act on `v`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.
        kernel: Tensor of shape `kernel_size + (channels, filters)`, the value of
            `normalized_kernel()` at the start of a solve. Defaults to `None`, which
            computes it from the weights in this call.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, new_height, new_width, filters)`.

    Example:

    >>> layer = WeightNormalizedConv2D(4, 3, padding="same", use_bias=False)
    >>> tuple(layer(keras.ops.ones((2, 8, 8, 5))).shape)
    (2, 8, 8, 4)

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """
