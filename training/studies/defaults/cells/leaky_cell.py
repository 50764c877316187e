"""A leaky cell, which converges slowly whatever it has learned."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class LeakyCell(deq_keras.layers.EquilibriumCell):
    """Cell of a leaky layer, for vectors.

        f(z, x) = (1 - rate) z + rate tanh(z W + x U + b)

    Args:
        units: Positive integer. Size of the state.
        rate: Float in (0, 1]. Defaults to `0.15`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, units)`.
        injection: x U + b, tensor of the same shape.

    Input shape:
        Of `inject`: `(batch, features)`.

    Output shape:
        `(batch, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(LeakyCell(8))
    >>> equilibrium(keras.ops.ones((3, 2))).shape
    TensorShape([3, 8])
    """

    def __init__(self, units, rate=0.15, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.rate = rate
        dtype = self.dtype_policy
        self.injection_layer = keras.layers.Dense(units, name="injection", dtype=dtype)
        self.recurrence = keras.layers.Dense(
            units, use_bias=False, name="recurrence", dtype=dtype
        )

    def build(self, inputs_shape):
        self.injection_layer.build(inputs_shape)
        self.recurrence.build((*inputs_shape[:-1], self.units))

    def inject(self, inputs, training=False):
        """Returns x U + b of the inputs x."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.injection_layer(inputs)

    def call(self, state, injection):
        new = ops.tanh(self.recurrence(state) + injection)
        return (1.0 - self.rate) * state + self.rate * new

    def get_config(self):
        config = {"units": self.units, "rate": self.rate}
        return {**super().get_config(), **config}
