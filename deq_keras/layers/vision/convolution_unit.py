"""Convolution, batch normalization and ReLU."""

import keras

from deq_keras.core.checks import check_boolean, check_count, check_rate
from deq_keras.core.serialization import arguments_of
from deq_keras.layers.kernel_initializer import SMALL_NORMAL
from deq_keras.layers.vision.symmetric_conv import SymmetricConv2D, check_side


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
        filters,
        kernel_size,
        strides=1,
        use_bias=False,
        affine=True,
        relu=True,
        momentum=0.9,
        **kwargs,
    ):
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
            epsilon=1e-5,  # As in PyTorch. Keras uses 1e-3.
            center=self.affine,
            scale=self.affine,
            name="normalization",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape):
        self.convolution.build(input_shape)
        self.normalization.build(self.compute_output_shape(input_shape))

    def call(self, inputs, training=None):
        outputs = self.normalization(self.convolution(inputs), training=training)
        return keras.ops.relu(outputs) if self.relu else outputs

    def compute_output_shape(self, input_shape):
        return self.convolution.compute_output_shape(input_shape)

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, ConvolutionUnit)}
