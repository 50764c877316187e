"""A perceptron with a gate."""

import keras
from keras import ops

from deq_keras.core.checks import check_count
from deq_keras.layers.composite_layer import CompositeLayer


@keras.saving.register_keras_serializable(package="deq_keras")
class GatedMLP(CompositeLayer):
    """A gated perceptron (SwiGLU) without biases: `(silu(x A) * x B) C`.

    Args:
        expansion: Positive integer. Number of columns of A and B per feature of x.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Input shape:
        `(batch, ..., features)`.

    Output shape:
        Same as the input shape.

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
        features = input_shape[-1]
        hidden = self.expansion * features
        self.inner = self._dense(2 * hidden, "inner")
        self.outer = self._dense(features, "outer")
        self.inner.build((None, features))
        self.outer.build((None, hidden))

    def call(self, inputs):
        # Flattens to a matrix: within a loop, XLA cannot differentiate a product with
        # more axes of unknown sizes.
        rows = ops.reshape(inputs, (-1, self.outer.units))
        gate, values = ops.split(self.inner(rows), 2, axis=-1)
        return ops.reshape(self.outer(ops.silu(gate) * values), ops.shape(inputs))

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
