"""Group normalization with a gradient in closed form."""

import math
from typing import NamedTuple

import keras
from keras import ops

from deq_keras.core.checks import check_boolean, check_integer, check_positive
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.serialization import arguments_of
from deq_keras.core.structure import wide_dtype


@keras.saving.register_keras_serializable(package="deq_keras")
class GroupNormalization(keras.layers.Layer):
    """Group normalization with few passes over the feature map.

    It has the same function, arguments and weights as
    `keras.layers.GroupNormalization`, but is faster in equilibrium cells, where it runs
    at every evaluation:

    ```
    centered = inputs - mean
    outputs  = centered * (gamma / sqrt(variance + epsilon)) + beta
    ```

    with mean and biased variance over the positions and channels of a group. Groups are
    contiguous channels. Sums are computed over positions for each channel and then
    combined into groups, so the map is never reshaped. The gradient uses a closed form
    with two sums and one combination. It is exactly differentiable.

    The variance is the mean square of the centered map, not a difference of large
    numbers, so it is accurate for maps with a large mean. Statistics use float32
    (float64 for float64 inputs), independent of the compute dtype.

    Args:
        groups: Positive integer. Number of groups. Must divide the number of channels.
            `-1` uses one group per channel. Defaults to `32`, as in Keras.
        axis: Integer. The channel axis. Defaults to `-1`.
        epsilon: Positive float. Added to the variance. Defaults to `1e-5`, as in the
            reference, the authors' PyTorch code (locuslab/deq). Keras uses `1e-3`.
        center: Boolean. Whether to add `beta`. Defaults to `True`.
        scale: Boolean. Whether to multiply by `gamma`. Defaults to `True`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of rank 2 or more, batch first.

    Input shape:
        `(batch, ..., channels)`, with the channels at `axis`.

    Output shape:
        Same as the input shape.

    Raises:
        ValueError: If `groups` does not divide the number of channels, or an
            argument is out of range.

    Example:

    >>> layer = GroupNormalization(groups=4)
    >>> tuple(layer(keras.random.normal((2, 8, 8, 24))).shape)
    (2, 8, 8, 24)

    Reference:
        [Wu and He, 2018](https://arxiv.org/abs/1803.08494).
    """

    def __init__(
        self,
        groups=32,
        axis=-1,
        epsilon=1e-5,
        center=True,
        scale=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.groups = check_integer("groups", groups, minimum=-1)
        if self.groups == 0:
            raise ValueError(
                "`groups` must be a positive integer, or -1 for one group a channel. "
                "Received: groups=0."
            )
        self.axis = check_integer("axis", axis)
        if self.axis == 0:
            raise ValueError(
                "`axis` must be the position of the channels, not the batch axis. "
                "Received: axis=0."
            )
        self.epsilon = check_positive("epsilon", epsilon)
        self.center = check_boolean("center", center)
        self.scale = check_boolean("scale", scale)
        self.supports_masking = True

    def build(self, input_shape):
        channels = self._checked_channels(input_shape)
        self.input_spec = keras.InputSpec(
            ndim=len(input_shape), axes={self.axis: channels}
        )
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self._add_channel_weight("gamma", channels, "ones")
        if self.center:
            self.beta = self._add_channel_weight("beta", channels, "zeros")

    def _checked_channels(self, input_shape):
        rank = len(input_shape)
        if not -rank < self.axis < rank:
            raise ValueError(
                f"`axis` of layer '{self.name}' must name an axis of the inputs other "
                f"than the batch. Received: axis={self.axis}, inputs of shape "
                f"{input_shape}."
            )
        channels = input_shape[self.axis]
        if channels is None or (self.groups > 0 and channels % self.groups != 0):
            raise ValueError(
                f"Layer '{self.name}' needs a static number of channels that its "
                f"groups divide. Received: groups={self.groups}, {channels} channels "
                f"on axis {self.axis} of inputs of shape {input_shape}."
            )
        return channels

    def _add_channel_weight(self, name, channels, initializer):
        return self.add_weight(
            name=name, shape=(channels,), initializer=initializer, autocast=False
        )

    def call(self, inputs):
        channels = inputs.shape[self.axis]
        dtype = wide_dtype(self.compute_dtype)
        gamma = ops.ones((channels,), dtype) if self.gamma is None else self.gamma
        beta = ops.zeros((channels,), dtype) if self.beta is None else self.beta
        # Gamma and beta are arguments, because a custom gradient does not support
        # captured variables.
        groups = channels if self.groups == -1 else self.groups
        normalize = custom_gradient(_Groups(groups, self.axis, self.epsilon).normalize)
        return normalize(inputs, ops.cast(gamma, dtype), ops.cast(beta, dtype))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, GroupNormalization)}


class _Groups(NamedTuple):
    """The channel groups of a feature map.

    The gradient function of a graph refers to this object, because a reference to the
    layer would keep the layer alive.
    """

    count: int
    axis: int
    epsilon: float

    def normalize(self, inputs, gamma, beta):
        """Returns the outputs and the function of their gradient."""
        gamma_map = self._to_map(gamma, inputs)
        wide = ops.cast(inputs, gamma.dtype)
        centered = wide - self._group_mean(self._position_sum(wide), inputs)
        variance = self._group_mean(self._position_sum(ops.square(centered)), inputs)
        inverse = ops.rsqrt(variance + self.epsilon)
        outputs = centered * (inverse * gamma_map) + self._to_map(beta, inputs)

        def gradient(upstream):
            return self._gradient(upstream, centered, inverse, gamma_map)

        return ops.cast(outputs, inputs.dtype), gradient

    def _gradient(self, upstream, centered, inverse, gamma_map):
        wide = ops.cast(upstream, centered.dtype)
        beta_sum = self._position_sum(wide)
        gamma_sum = self._position_sum(wide * centered) * inverse
        mean = self._group_mean(beta_sum * gamma_map, wide)
        slope = self._group_mean(gamma_sum * gamma_map, wide)
        grad_inputs = (
            wide * (inverse * gamma_map)
            - centered * (inverse * inverse * slope)
            - inverse * mean
        )
        grad_gamma = ops.reshape(ops.sum(gamma_sum, axis=0), (-1,))  # (C,)
        grad_beta = ops.reshape(ops.sum(beta_sum, axis=0), (-1,))  # (C,)
        return ops.cast(grad_inputs, upstream.dtype), grad_gamma, grad_beta

    def _position_sum(self, feature_map):
        """Sums over all axes except batch and channels, and keeps all axes."""
        axes = self._position_axes(feature_map)
        # A single reduction reads the map in one pass.
        return ops.sum(feature_map, axis=axes, keepdims=True) if axes else feature_map

    def _group_mean(self, channel_sums, feature_map):
        """Converts sums over positions to the mean of each channel's group."""
        channels = channel_sums.shape[self.axis]
        size = channels // self.count
        grouped = ops.reshape(channel_sums, (-1, self.count, size))  # (B, groups, size)
        count = size * self._num_positions(feature_map, channel_sums.dtype)
        # The product also repeats the mean for each channel, without a dynamic shape.
        share = ops.full((1, 1, size), 1 / count, channel_sums.dtype)
        mean = ops.sum(grouped, axis=-1, keepdims=True) * share
        shape = [1] * len(channel_sums.shape)
        shape[0], shape[self.axis] = -1, channels
        return ops.reshape(mean, shape)  # (B, 1, ..., C)

    def _num_positions(self, feature_map, dtype):
        shape = ops.shape(feature_map)
        count = math.prod(shape[axis] for axis in self._position_axes(feature_map))
        return count if isinstance(count, int) else ops.cast(count, dtype)

    def _position_axes(self, feature_map):
        rank = len(feature_map.shape)
        return tuple(axis for axis in range(1, rank) if axis != self.axis % rank)

    def _to_map(self, channel_vector, feature_map):
        shape = [1] * len(feature_map.shape)
        shape[self.axis] = -1
        return ops.reshape(channel_vector, shape)  # (1, ..., C)
