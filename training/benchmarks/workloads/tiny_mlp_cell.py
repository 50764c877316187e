"""The benchmark's tiny multilayer perceptron."""

import keras
from keras import ops

from deq_keras import layers


@keras.saving.register_keras_serializable("deq_keras_benchmarks")
class TinyMLPCell(layers.EquilibriumCell):
    """One hidden layer on a scalar state: nearly all of a solve is overhead.

        f(z, x) = tanh([z, x] A1 + b1) A2 + b2

    Args:
        hidden: int. Hidden units. Defaults to `50`.

    Call arguments:
        state: tensor `(batch, 1)`.
        injection: tensor `(batch, 1)`.
    """

    def __init__(self, hidden=50, **kwargs):
        super().__init__(**kwargs)
        self.hidden = hidden

    def build(self, state_shape, injection_shape=None):
        batch, features = state_shape
        self.hidden_dense = keras.layers.Dense(
            self.hidden, activation="tanh", dtype=self.dtype_policy
        )
        self.output_dense = keras.layers.Dense(features, dtype=self.dtype_policy)
        self.hidden_dense.build((batch, 2 * features))
        self.output_dense.build((batch, self.hidden))

    def call(self, state, injection):
        joined = ops.concatenate([state, injection], axis=-1)  # (B, 2)
        return self.output_dense(self.hidden_dense(joined))

    def get_config(self):
        return {**super().get_config(), "hidden": self.hidden}
