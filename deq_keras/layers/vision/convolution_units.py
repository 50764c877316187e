"""Convolutions with batch normalization, for stems and heads."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_boolean, check_count, check_integer, check_rate
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers.kernel_initializer import SMALL_NORMAL
from deq_keras.layers.vision.symmetric_conv import SymmetricConv2D, check_side

# Output channels of a block for each of its filters.
_EXPANSION = 4


@keras.saving.register_keras_serializable(package="deq_keras")
class ConvolutionUnit(keras.layers.Layer):
    """Convolution, batch normalization and ReLU, for stems and heads.

    Do not use it in a cell, because batch normalization couples the samples of a batch
    and updates statistics. Epsilon, momentum and padding are as in PyTorch.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive odd integer. Side of the window.
        strides: Positive integer. Step of the window. Defaults to `1`.
        use_bias: Boolean. Whether the convolution has a bias. Defaults to `False`.
        affine: Boolean. Whether the normalization has scale and offset. Defaults to
            `True`.
        relu: Boolean. Whether to apply a ReLU last. Defaults to `True`.
        momentum: Float in `[0, 1)`. Weight of the old moving statistics in an update.
            Defaults to `0.9`, which PyTorch calls `0.1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.
        training: Boolean. Whether to use batch statistics.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Example:

    >>> unit = ConvolutionUnit(4, 3, strides=2)
    >>> tuple(unit(keras.ops.ones((2, 8, 8, 3))).shape)
    (2, 4, 4, 4)
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int,
        strides: int = 1,
        use_bias: bool = False,
        affine: bool = True,
        relu: bool = True,
        momentum: float = 0.9,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.kernel_size = check_side("kernel_size", kernel_size)
        self.strides = check_count("strides", strides)
        self.use_bias = check_boolean("use_bias", use_bias)
        self.affine = check_boolean("affine", affine)
        self.relu = check_boolean("relu", relu)
        self.momentum = check_rate("momentum", momentum)
        self.convolution = SymmetricConv2D(
            self.filters,
            self.kernel_size,
            strides=self.strides,
            use_bias=self.use_bias,
            kernel_initializer=SMALL_NORMAL,
            bias_initializer=SMALL_NORMAL,
            name="convolution",
            dtype=self.dtype_policy,
        )
        self.normalization = keras.layers.BatchNormalization(
            momentum=self.momentum,
            epsilon=1e-5,  # The default of PyTorch. Keras uses 1e-3.
            center=self.affine,
            scale=self.affine,
            name="normalization",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        self.convolution.build(input_shape)
        self.normalization.build(self.compute_output_shape(input_shape))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        outputs = self.normalization(self.convolution(inputs), training=training)
        return keras.ops.relu(outputs) if self.relu else outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.convolution.compute_output_shape(input_shape)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, ConvolutionUnit)}


@keras.saving.register_keras_serializable(package="deq_keras")
class BottleneckBlock(keras.layers.Layer):
    """Residual block 1x1, 3x3, 1x1 with batch normalization, for heads.

    ```
    outputs = relu(unit3(unit2(unit1(inputs))) + shortcut(inputs))
    ```

    The three units (see `ConvolutionUnit`) normalize without scale and offset, and the
    last one omits the ReLU. The shortcut is a 1x1 unit with scale and offset but
    without ReLU, or the identity if the numbers of channels are equal.

    Args:
        filters: Positive integer. Number of channels between the units. The output has
            four times as many.
        momentum: Float in `[0, 1)`. See `ConvolutionUnit`. Defaults to `0.9`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.
        training: Boolean. Whether to use batch statistics.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, height, width, 4 * filters)`.

    Example:

    >>> block = BottleneckBlock(8)
    >>> tuple(block(keras.ops.ones((2, 8, 8, 24))).shape)
    (2, 8, 8, 32)

    Reference:
        [He et al., 2016](https://arxiv.org/abs/1512.03385).
    """

    def __init__(self, filters: int, momentum: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.momentum = check_rate("momentum", momentum)
        outputs = _EXPANSION * self.filters
        self.units = [
            self._unit(self.filters, 1, affine=False, name="unit_0"),
            self._unit(self.filters, 3, affine=False, name="unit_1"),
            self._unit(outputs, 1, affine=False, relu=False, name="unit_2"),
        ]
        self.shortcut: Any = None

    def _unit(self, filters: int, kernel_size: int, **options: Any) -> ConvolutionUnit:
        policy = self.dtype_policy
        return ConvolutionUnit(
            filters, kernel_size, momentum=self.momentum, dtype=policy, **options
        )

    def build(self, input_shape: Any) -> None:
        if input_shape[-1] != _EXPANSION * self.filters:
            self.shortcut = self._unit(
                _EXPANSION * self.filters, 1, relu=False, name="shortcut"
            )
            self.shortcut.build(input_shape)
        for unit in self.units:
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        outputs = inputs
        for unit in self.units:
            outputs = unit(outputs, training=training)
        if self.shortcut is not None:
            inputs = self.shortcut(inputs, training=training)
        return ops.relu(outputs + inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape[:-1], _EXPANSION * self.filters)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, BottleneckBlock)}


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
        filters: int,
        num_downsamplings: int = 2,
        injection_unit: bool = True,
        momentum: float = 0.9,
        **kwargs: Any,
    ) -> None:
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

    def build(self, input_shape: Any) -> None:
        for unit in self.units:
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        for unit in self.units:
            inputs = unit(inputs, training=training)
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        for unit in self.units:
            input_shape = unit.compute_output_shape(input_shape)
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, MultiscaleStem)}
