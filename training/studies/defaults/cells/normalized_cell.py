"""A residual block whose output is normalized."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class NormalizedCell(deq_keras.layers.EquilibriumCell):
    """Cell of a residual block with layer normalization, for vectors.

        f(z, x) = norm(z + relu(z W + x U + b) V + c)

    Args:
        units: Positive integer. Size of the state.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, units)`.
        injection: x U + b, tensor of the same shape.

    Input shape:
        Of `inject`: `(batch, features)`.

    Output shape:
        `(batch, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(NormalizedCell(8))
    >>> equilibrium(keras.ops.ones((3, 2))).shape
    TensorShape([3, 8])
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        dtype = self.dtype_policy
        self.injection_layer = keras.layers.Dense(units, name="injection", dtype=dtype)
        self.dense1 = keras.layers.Dense(
            units, use_bias=False, name="dense1", dtype=dtype
        )
        self.dense2 = keras.layers.Dense(units, name="dense2", dtype=dtype)
        self.norm = keras.layers.LayerNormalization(name="norm", dtype=dtype)

    def build(self, inputs_shape):
        self.injection_layer.build(inputs_shape)
        for layer in (self.dense1, self.dense2, self.norm):
            layer.build((*inputs_shape[:-1], self.units))

    def inject(self, inputs, training=False):
        """Returns x U + b of the inputs x."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.injection_layer(inputs)

    def call(self, state, injection):
        hidden = ops.relu(self.dense1(state) + injection)
        return self.norm(state + self.dense2(hidden))

    def get_config(self):
        return {**super().get_config(), "units": self.units}
