"""The scalar cell of the synthetic study."""

import keras
from keras import ops

import deq_keras


@keras.saving.register_keras_serializable("deq_keras_training")
class ScalarCell(deq_keras.layers.EquilibriumCell):
    """Cell of a scalar state: a perceptron with one hidden layer.

        f(z; x) = W2^T relu(W1 z + U x + b)

    `W1`, `U`, `b` start uniform on (-1, 1) and `W2` on (-1, 1) / sqrt(units), so
    df/dz has a standard deviation of about 0.24 and iterating converges at
    initialization.

    Args:
        units: int >= 1. Hidden units. The cell has `4 * units` parameters. Defaults to
            `50`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        state: z, tensor `(batch, 1)`.
        injection: U x + b, tensor `(batch, units)`.

    Output shape:
        `(batch, 1)`.

    Example:

    >>> equilibrium = deq_keras.layers.DEQ(ScalarCell())
    >>> equilibrium(keras.ops.ones((3, 1))).shape, equilibrium.count_params()
    (TensorShape([3, 1]), 200)

    Reference:

    - Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian Regularization",
      figure 5.
    """

    def __init__(self, units=50, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(units, int) or isinstance(units, bool) or units < 1:
            raise ValueError(
                "`units` must be an int of at least 1, the number of hidden units. "
                f"Received: units={units!r}."
            )
        self.units = units
        self.input_layer = keras.layers.Dense(
            units,
            kernel_initializer=_uniform(1.0),
            bias_initializer=_uniform(1.0),
            name="input",
            dtype=self.dtype_policy,
        )
        self.state_layer = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=_uniform(1.0),
            name="state",
            dtype=self.dtype_policy,
        )
        self.output_layer = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer=_uniform(units**-0.5),
            name="output",
            dtype=self.dtype_policy,
        )

    def build(self, inputs_shape):
        self.input_layer.build(inputs_shape)
        self.state_layer.build((inputs_shape[0], 1))
        self.output_layer.build((inputs_shape[0], self.units))

    def inject(self, inputs, training=False):
        """Returns U x + b of the inputs x, `(batch, 1)`."""
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        return self.input_layer(inputs)

    def initial_state(self, injection):
        """Returns z = 0 for every sample."""
        return ops.zeros_like(injection[:, :1])

    def call(self, state, injection):
        hidden = ops.relu(self.state_layer(state) + injection)  # (B, units)
        return self.output_layer(hidden)  # (B, 1)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def _uniform(limit):
    return keras.initializers.RandomUniform(-limit, limit)
