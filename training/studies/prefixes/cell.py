"""The cell of the study of prefixes."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class RecallCell(deq_keras.layers.EquilibriumCell):
    """Cell of a sequence that sees its input again in every evaluation.

        h = relu(W0 * [z, x])
        h = relu(h + W2 * relu(W1 * h))
        f(z, x) = relu(h + W4 * relu(W3 * h))

    The five convolutions have windows of three positions and no bias, so that
    information travels by at most five positions in an evaluation.

    Args:
        units: int >= 1. Channels of the state.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, length, units)`.
        injection: x, tensor `(batch, length, channels)`.

    Output shape:
        `(batch, length, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(RecallCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 1))).shape
    TensorShape([3, 5, 8])

    Reference:

    - Bansal et al. (2022), "End-to-end Algorithm Synthesis with Recurrent Networks:
      Logical Extrapolation Without Overthinking" (there of 400 units).
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.recall = self._convolution("recall")
        self.residual1 = self._convolution("residual1")
        self.residual2 = self._convolution("residual2")
        self.residual3 = self._convolution("residual3")
        self.residual4 = self._convolution("residual4")

    def build(self, inputs_shape):
        *positions, channels = inputs_shape
        self.recall.build((*positions, self.units + channels))
        for layer in (
            self.residual1,
            self.residual2,
            self.residual3,
            self.residual4,
        ):
            layer.build((*positions, self.units))

    def initial_state(self, injection):
        """Returns zeros of `(batch, length, units)`."""
        return ops.repeat(ops.zeros_like(injection[..., :1]), self.units, axis=-1)

    def inject(self, inputs, training=False):
        """Returns the inputs."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return inputs

    def call(self, state, injection):
        hidden = ops.relu(self.recall(ops.concatenate([state, injection], axis=-1)))
        inner = ops.relu(self.residual1(hidden))
        hidden = ops.relu(hidden + self.residual2(inner))
        inner = ops.relu(self.residual3(hidden))
        return ops.relu(hidden + self.residual4(inner))

    def get_config(self):
        return {**super().get_config(), "units": self.units}

    def _convolution(self, name):
        return keras.layers.Conv1D(
            self.units,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer="he_uniform",
            name=name,
            dtype=self.dtype_policy,
        )
