"""The stem of multiscale equilibrium models."""

import keras

from deq_keras.core.checks import check_boolean, check_count, check_integer, check_rate
from deq_keras.core.serialization import arguments_of
from deq_keras.layers.vision.convolution_unit import ConvolutionUnit


@keras.saving.register_keras_serializable(package="deq_keras")
class MultiscaleStem(keras.layers.Layer):
    """Computes the injection of a multiscale equilibrium from images.

    Applies two or more 3x3 `ConvolutionUnit`s, of which the first `num_downsamplings`
    halve the resolution, and an optional 1x1 `ConvolutionUnit` (Bai, Koltun and Kolter,
    2020, section 3.3).

    Args:
        filters: Positive integer. Number of channels of the finest scale.
        num_downsamplings: Non-negative integer. Number of halvings of the resolution.
            Defaults to `2`, for large images.
        injection_unit: Boolean. Whether to apply the 1x1 unit. Defaults to `True`.
        momentum: Float in `[0, 1)`. See `ConvolutionUnit`. Defaults to `0.9`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.
        training: Boolean. Whether to use batch statistics.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, height / 2**n, width / 2**n, filters)`, where n is the number of
        downsamplings and sizes are rounded up.

    Example:

    >>> stem = MultiscaleStem(24, num_downsamplings=1)
    >>> tuple(stem(keras.ops.ones((2, 32, 32, 3))).shape)
    (2, 16, 16, 24)

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    def __init__(
        self,
        filters,
        num_downsamplings=2,
        injection_unit=True,
        momentum=0.9,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.num_downsamplings = check_integer(
            "num_downsamplings", num_downsamplings, minimum=0
        )
        self.injection_unit = check_boolean("injection_unit", injection_unit)
        self.momentum = check_rate("momentum", momentum)
        sizes = [
            (3, 2 if index < self.num_downsamplings else 1)
            for index in range(max(2, self.num_downsamplings))
        ]
        if self.injection_unit:
            sizes.append((1, 1))
        self.units = [
            ConvolutionUnit(
                self.filters,
                kernel_size,
                strides=strides,
                momentum=self.momentum,
                name=f"unit_{index}",
                dtype=self.dtype_policy,
            )
            for index, (kernel_size, strides) in enumerate(sizes)
        ]

    def build(self, input_shape):
        for unit in self.units:
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)

    def call(self, inputs, training=None):
        for unit in self.units:
            inputs = unit(inputs, training=training)
        return inputs

    def compute_output_shape(self, input_shape):
        for unit in self.units:
            input_shape = unit.compute_output_shape(input_shape)
        return input_shape

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, MultiscaleStem)}
