"""Group normalization with a gradient in closed form."""

import functools
import math
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import check_count
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import wide_dtype
from deq_keras.layers.normalization.layer_normalization import AffineNormalization


@keras.saving.register_keras_serializable(package="deq_keras")
class GroupNormalization(AffineNormalization):
    """Group normalization with few passes over the feature map.

    It has the same function and weights as `keras.layers.GroupNormalization`, but is
    faster in equilibrium cells, where it runs at every evaluation:

    ```
    centered = inputs - mean
    outputs  = centered * (gamma / sqrt(variance + epsilon)) + beta
    ```

    with mean and biased variance over the positions and channels of a group. Groups are
    contiguous channels. Sums are computed over positions for each channel and then
    combined into groups, so the map is never reshaped. The gradient uses a closed form
    with two sums and one combination. It is exactly differentiable.

    The variance is the mean square of the centered map, or where XLA compiles, the
    difference of two sums in float64, which take a single pass. Both are accurate for
    maps with a large mean. Statistics use float32 (float64 for float64 inputs),
    independent of the compute dtype.

    Args:
        groups: Positive integer. Number of groups. Must divide the number of channels.
            Defaults to `32`, as in Keras.
        epsilon: Positive float. Added to the variance. Defaults to `1e-5`, as in the
            reference, the authors' PyTorch code (locuslab/deq). Keras uses `1e-3`.
        center: Boolean. Whether to add `beta`. Defaults to `True`.
        scale: Boolean. Whether to multiply by `gamma`. Defaults to `True`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        inputs: Tensor of rank 2 or more, batch first.

    Input shape:
        `(batch, ..., channels)`.

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
        groups: int = 32,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(epsilon, center, scale, **kwargs)
        self.groups = check_count("groups", groups)

    def build(self, input_shape: Any) -> None:
        channels = input_shape[-1]
        if channels is None or channels % self.groups:
            raise ValueError(
                f"Layer '{self.name}' needs a static number of channels that its "
                f"groups divide. Received: groups={self.groups}, {channels} channels "
                f"on the last axis of inputs of shape {tuple(input_shape)}."
            )
        self.input_spec = keras.InputSpec(ndim=len(input_shape), axes={-1: channels})
        self._create_weights(channels)

    def call(self, inputs: Any) -> Any:
        channels = inputs.shape[-1]
        dtype = wide_dtype(self.compute_dtype)
        gamma = ops.ones((channels,), dtype) if self.gamma is None else self.gamma
        beta = ops.zeros((channels,), dtype) if self.beta is None else self.beta
        # Gamma and beta are arguments, because a custom gradient does not support
        # captured variables. A graph keeps the function of its gradient alive, so it
        # must not refer to the layer.
        normalize = custom_gradient(
            functools.partial(_normalize, self.groups, self.epsilon)
        )
        return normalize(inputs, ops.cast(gamma, dtype), ops.cast(beta, dtype))

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, GroupNormalization)}


def _normalize(
    num_groups: int, epsilon: float, inputs: Any, gamma: Any, beta: Any
) -> Any:
    """Returns the outputs and the function of their gradient.

    With the centered inputs c, s = 1 / sqrt(variance + epsilon), and the gradient u of
    the outputs:

    1. outputs    = c s gamma + beta
    2. grad_beta  = sum of u over positions
    3. grad_gamma = sum of u c s over positions
    4. grad_inputs = s (u gamma - mean(u gamma)) - c s^2 mean(u gamma c s), with means
       over a group: the mean and the variance depend on the inputs, too

    Steps 2 and 3 are the only sums over the map. Their values, times gamma, add up to
    the means of step 4.

    Args:
        num_groups: Positive integer.
        epsilon: Positive float.
        inputs: Tensor `(batch, ..., channels)`.
        gamma: Tensor `(channels,)` in float32 or float64, the dtype of the sums.
        beta: Tensor like `gamma`.
    """
    axes = tuple(range(1, len(inputs.shape) - 1))
    channels = inputs.shape[-1]
    size = channels // num_groups
    num_positions = math.prod(ops.shape(inputs)[axis] for axis in axes)

    def position_sum(feature_map: Any) -> Any:
        # A single reduction reads the map in one pass.
        return ops.sum(feature_map, axis=axes, keepdims=True) if axes else feature_map

    def group_mean(channel_sums: Any) -> Any:
        """Converts sums over positions to the mean of each channel's group."""
        grouped = ops.reshape(channel_sums, (-1, num_groups, size))  # (B, groups, size)
        # The product also repeats the mean for each channel, without a dynamic shape.
        count = ops.cast(size * num_positions, grouped.dtype)
        share = ops.full((1, 1, size), 1 / count, grouped.dtype)
        mean = ops.sum(grouped, axis=-1, keepdims=True) * share
        return ops.reshape(mean, (-1, *[1] * len(axes), channels))  # (B, 1, ..., C)

    wide = ops.cast(inputs, gamma.dtype)
    if is_compiled_by_xla():
        # XLA computes both sums in one pass if they are one sum, and casts within it.
        # Float64 keeps what the difference would lose.
        widest = ops.cast(inputs, "float64")
        pairs = ops.stack([widest, ops.square(widest)], axis=-1)
        mean, square = map(group_mean, ops.unstack(position_sum(pairs), axis=-1))
        variance = ops.maximum(square - ops.square(mean), 0.0)
        variance = ops.cast(variance, gamma.dtype)
        centered = wide - ops.cast(mean, gamma.dtype)
    else:
        centered = wide - group_mean(position_sum(wide))
        variance = group_mean(position_sum(ops.square(centered)))
    inverse = ops.rsqrt(variance + epsilon)
    outputs = centered * (inverse * gamma) + beta

    def gradient(upstream: Any) -> Any:
        wide = ops.cast(upstream, gamma.dtype)
        beta_sum = position_sum(wide)
        gamma_sum = position_sum(wide * centered) * inverse
        mean = group_mean(beta_sum * gamma)
        slope = group_mean(gamma_sum * gamma)
        grad_inputs = (
            wide * (inverse * gamma)
            - centered * (inverse * inverse * slope)
            - inverse * mean
        )
        grad_gamma = ops.reshape(ops.sum(gamma_sum, axis=0), (-1,))  # (C,)
        grad_beta = ops.reshape(ops.sum(beta_sum, axis=0), (-1,))  # (C,)
        return ops.cast(grad_inputs, upstream.dtype), grad_gamma, grad_beta

    return ops.cast(outputs, inputs.dtype), gradient
