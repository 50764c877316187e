"""The gated cell of the task on vectors."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class GatedCell(deq_keras.layers.EquilibriumCell):
    """Cell of one gated layer, for vectors.

        g       = sigmoid(z W_g + x U_g + b_g)
        f(z, x) = g tanh(z W + x U + b) + (1 - g) retention z

    Args:
        units: int >= 1. Size of the state.
        retention: Float in [0, 1]. With `1.0` the gate decides how fast the cell
            converges, as in a GRU. Defaults to `0.5`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, units)`.
        injection: what `inject` returned for this solve.

    Input shape:
        Of `inject`: `(batch, features)`.

    Output shape:
        `(batch, units)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(GatedCell(8))
    >>> equilibrium(keras.ops.ones((3, 2))).shape
    TensorShape([3, 8])
    """

    def __init__(self, units, retention=0.5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.retention = retention
        self.gate = self._dense("gate")
        self.candidate = self._dense("candidate")
        self.gate_injection = self._dense("gate_injection")
        self.candidate_injection = self._dense("candidate_injection")

    def build(self, inputs_shape):
        for layer in (self.gate_injection, self.candidate_injection):
            layer.build(inputs_shape)
        for layer in (self.gate, self.candidate):
            layer.build((*inputs_shape[:-1], self.units))

    def inject(self, inputs, training=False):
        """Returns a dict of x U_g as `"gate"` and x U as `"candidate"`."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return {
            "gate": self.gate_injection(inputs),
            "candidate": self.candidate_injection(inputs),
        }

    def initial_state(self, injection):
        """Returns z = 0."""
        return ops.zeros_like(injection["gate"])

    def call(self, state, injection):
        gate = ops.sigmoid(self.gate(state) + injection["gate"])
        candidate = ops.tanh(self.candidate(state) + injection["candidate"])
        return gate * candidate + (1.0 - gate) * self.retention * state

    def get_config(self):
        config = {"units": self.units, "retention": self.retention}
        return {**super().get_config(), **config}

    def _dense(self, name):
        return keras.layers.Dense(self.units, name=name, dtype=self.dtype_policy)
