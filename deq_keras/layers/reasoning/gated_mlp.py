"""A perceptron with a gate."""

import keras
from keras import ops

from deq_keras.checks import check_count


@keras.saving.register_keras_serializable(package="deq_keras")
class GatedMLP(keras.layers.Layer):
    """`(silu(x A) * x B) C`: a perceptron with a gate (SwiGLU), without biases.

    Args:
        expansion: Positive integer. A and B have so many columns for each feature of x.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Input shape:
        `(batch, ..., features)`.

    Output shape:
        The same.

    Example:

    >>> tuple(GatedMLP(expansion=2)(np.ones((2, 5, 3), "float32")).shape)
    (2, 5, 3)

    Reference:
        [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
    """

    def __init__(self, expansion, **kwargs):
        super().__init__(**kwargs)
        self.expansion = check_count("expansion", expansion)

    def build(self, input_shape):
        *positions, features = input_shape
        hidden = self.expansion * features
        self.inner = self._dense(2 * hidden, "inner")
        self.outer = self._dense(features, "outer")
        self.inner.build(input_shape)
        self.outer.build((*positions, hidden))

    def call(self, inputs):
        gate, values = ops.split(self.inner(inputs), 2, axis=-1)
        return self.outer(ops.silu(gate) * values)

    def get_config(self):
        return {**super().get_config(), "expansion": self.expansion}

    def _dense(self, units, name):
        return keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer="lecun_normal",
            name=name,
            dtype=self.dtype_policy,
        )
