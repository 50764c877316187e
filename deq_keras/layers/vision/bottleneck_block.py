"""Residual blocks of heads."""

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_rate
from deq_keras.core.serialization import arguments_of
from deq_keras.layers.vision.convolution_unit import ConvolutionUnit

EXPANSION = 4


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

    def __init__(self, filters, momentum=0.9, **kwargs):
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.momentum = check_rate("momentum", momentum)
        outputs = EXPANSION * self.filters
        self.units = [
            self._unit(self.filters, 1, affine=False, name="unit_0"),
            self._unit(self.filters, 3, affine=False, name="unit_1"),
            self._unit(outputs, 1, affine=False, relu=False, name="unit_2"),
        ]
        self.shortcut = None

    def _unit(self, *args, **kwargs):
        return ConvolutionUnit(
            *args, momentum=self.momentum, dtype=self.dtype_policy, **kwargs
        )

    def build(self, input_shape):
        if input_shape[-1] != EXPANSION * self.filters:
            self.shortcut = self._unit(
                EXPANSION * self.filters, 1, relu=False, name="shortcut"
            )
            self.shortcut.build(input_shape)
        for unit in self.units:
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)

    def call(self, inputs, training=None):
        outputs = inputs
        for unit in self.units:
            outputs = unit(outputs, training=training)
        if self.shortcut is not None:
            inputs = self.shortcut(inputs, training=training)
        return ops.relu(outputs + inputs)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], EXPANSION * self.filters)

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, BottleneckBlock)}
