"""The benchmark's convolutional block."""

import keras
from keras import ops

from deq_keras import layers


@keras.saving.register_keras_serializable("deq_keras_benchmarks")
class ConvBlockCell(layers.EquilibriumCell):
    """A residual block of two 3x3 convolutions and three group norms.

        y = x + conv(relu(GroupNorm(conv(z))))
        f(z, x) = GroupNorm(relu(z + GroupNorm(y)))

    Args:
        groups: int. Groups of the normalisations. Defaults to `8`.

    Call arguments:
        state: tensor `(batch, height, width, channels)`.
        injection: tensor like the state.
    """

    def __init__(self, groups=8, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups

    def build(self, state_shape, injection_shape=None):
        channels = state_shape[-1]
        self.first_convolution = self._convolution(channels)
        self.second_convolution = self._convolution(channels)
        self.first_norm = self._norm()
        self.second_norm = self._norm()
        self.third_norm = self._norm()
        for layer in (
            self.first_convolution,
            self.second_convolution,
            self.first_norm,
            self.second_norm,
            self.third_norm,
        ):
            layer.build(state_shape)

    def call(self, state, injection):
        hidden = ops.relu(self.first_norm(self.first_convolution(state)))
        hidden = injection + self.second_convolution(hidden)
        return self.third_norm(ops.relu(state + self.second_norm(hidden)))

    def get_config(self):
        return {**super().get_config(), "groups": self.groups}

    def _convolution(self, channels):
        return keras.layers.Conv2D(
            channels, 3, padding="same", use_bias=False, dtype=self.dtype_policy
        )

    def _norm(self):
        return layers.GroupNormalization(
            self.groups, epsilon=1e-5, dtype=self.dtype_policy
        )
