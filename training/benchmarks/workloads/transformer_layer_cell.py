"""The benchmark's transformer layer."""

import keras
from keras import ops

from deq_keras import layers


@keras.saving.register_keras_serializable("deq_keras_benchmarks")
class TransformerLayerCell(layers.EquilibriumCell):
    """A post-norm transformer layer without mask and dropout, injected at its input.

        a = z + x
        h = LayerNorm(a + Attention(a))
        f(z, x) = LayerNorm(h + W2 relu(W1 h + b1) + b2)

    Args:
        num_heads: int. Heads of the self-attention. Defaults to `8`.
        inner: int. Width of the feed-forward part. Defaults to `1024`.

    Call arguments:
        state: tensor `(batch, length, width)`.
        injection: tensor like the state.
    """

    def __init__(self, num_heads=8, inner=1024, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.inner = inner

    def build(self, state_shape, injection_shape=None):
        width = state_shape[-1]
        self.query_key_value = self._dense(3 * width)
        self.attention_output = self._dense(width)
        self.attention_norm = self._norm()
        self.inner_dense = self._dense(self.inner, activation="relu")
        self.outer_dense = self._dense(width)
        self.feed_forward_norm = self._norm()
        for layer in (
            self.query_key_value,
            self.attention_output,
            self.attention_norm,
            self.inner_dense,
        ):
            layer.build(state_shape)
        self.outer_dense.build((*state_shape[:-1], self.inner))
        self.feed_forward_norm.build(state_shape)

    def call(self, state, injection):
        attended = state + injection
        hidden = self.attention_norm(attended + self._attention(attended))
        update = self.outer_dense(self.inner_dense(hidden))
        return self.feed_forward_norm(hidden + update)

    def get_config(self):
        config = super().get_config()
        return {**config, "num_heads": self.num_heads, "inner": self.inner}

    def _attention(self, inputs):
        _, length, width = inputs.shape
        head = width // self.num_heads
        packed = self.query_key_value(inputs)
        packed = ops.reshape(packed, (-1, length, 3, self.num_heads, head))
        query, key, value = ops.unstack(
            ops.transpose(packed, (2, 0, 3, 1, 4)), num=3
        )  # (B, H, L, K) each
        scores = ops.matmul(query * head**-0.5, ops.swapaxes(key, -1, -2))  # (B,H,L,L)
        mixed = ops.matmul(ops.softmax(scores), value)  # (B, H, L, K)
        mixed = ops.transpose(mixed, (0, 2, 1, 3))
        mixed = ops.reshape(mixed, (-1, length, width))  # (B, L, H*K)
        return self.attention_output(mixed)

    def _dense(self, units, activation=None):
        return keras.layers.Dense(units, activation, dtype=self.dtype_policy)

    def _norm(self):
        return keras.layers.LayerNormalization(epsilon=1e-5, dtype=self.dtype_policy)
