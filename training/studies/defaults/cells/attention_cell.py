"""The cell of the sequence task."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class AttentionCell(deq_keras.layers.EquilibriumCell):
    """Cell of one transformer layer without mask, normalized after each branch.

        h       = norm1(z + attention(z) + x U + b)
        f(z, x) = norm2(h + W2 relu(W1 h + b1) + b2)

    The norms are root-mean-square norms of each position.

    Args:
        units: int >= 1, a multiple of `num_heads`. Size of the state at a position.
        num_heads: int >= 1. Attention heads. Defaults to `4`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, length, units)`.
        injection: x U + b, tensor `(batch, length, units)`.

    Input shape:
        Of `inject`: `(batch, length, features)`.

    Output shape:
        `(batch, length, units)`.

    Raises:
        ValueError: if `units` is not a multiple of `num_heads`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(AttentionCell(8))
    >>> equilibrium(keras.ops.ones((3, 5, 2))).shape
    TensorShape([3, 5, 8])

    Reference:

    - Vaswani et al. (2017), "Attention Is All You Need".
    """

    def __init__(self, units, num_heads=4, **kwargs):
        super().__init__(**kwargs)
        if units < 1 or num_heads < 1 or units % num_heads:
            raise ValueError(
                "`units` must be a positive multiple of `num_heads`. Received: "
                f"units={units}, num_heads={num_heads}."
            )
        self.units = units
        self.num_heads = num_heads
        self.injection_layer = self._dense(units, "injection")
        self.query_key_value = self._dense(3 * units, "query_key_value")
        self.attention_output = self._dense(units, "attention_output")
        self.expansion = self._dense(2 * units, "expansion")
        self.contraction = self._dense(units, "contraction")
        # Not a LayerNormalization: its second-order gradient is wrong on TensorFlow,
        # and a regularizer of the Jacobian needs it.
        self.norm1, self.norm2 = (
            keras.layers.RMSNormalization(name=name, dtype=self.dtype_policy)
            for name in ("norm1", "norm2")
        )

    def build(self, inputs_shape):
        state_shape = (*inputs_shape[:-1], self.units)
        self.injection_layer.build(inputs_shape)
        for layer in (
            self.query_key_value,
            self.attention_output,
            self.expansion,
            self.norm1,
            self.norm2,
        ):
            layer.build(state_shape)
        self.contraction.build((*inputs_shape[:-1], 2 * self.units))

    def inject(self, inputs, training=False):
        """Returns x U + b of the inputs x, `(batch, length, features)`."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.injection_layer(inputs)

    def initial_state(self, injection):
        """Returns z = 0 at every position."""
        return ops.zeros_like(injection)

    def call(self, state, injection):
        hidden = self.norm1(state + self._attend(state) + injection)
        branch = self.contraction(ops.relu(self.expansion(hidden)))
        return self.norm2(hidden + branch)  # (B, L, units)

    def get_config(self):
        config = {"units": self.units, "num_heads": self.num_heads}
        return {**super().get_config(), **config}

    def _attend(self, state):
        length, size = state.shape[1], self.units // self.num_heads
        heads = ops.reshape(
            self.query_key_value(state), (-1, length, 3, self.num_heads, size)
        )  # (B, L, 3, heads, size)
        query, key, value = ops.unstack(heads, 3, axis=2)
        scores = ops.einsum("bqhs,bkhs->bhqk", query, key) * size**-0.5
        weights = ops.softmax(scores)  # (B, heads, L, L)
        mixed = ops.einsum("bhqk,bkhs->bqhs", weights, value)
        mixed = ops.reshape(mixed, (-1, length, self.units))  # (B, L, units)
        return self.attention_output(mixed)

    def _dense(self, units, name):
        return keras.layers.Dense(units, name=name, dtype=self.dtype_policy)
