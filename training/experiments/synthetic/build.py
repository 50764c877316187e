"""The target curve, and the scalar equilibrium model that learns the curve."""

import keras
import numpy as np
from keras import ops

import deq_keras

from ...errors import config_errors
from ...runs.phases import equilibrium


def curve(x):
    """Returns h(x) = 3/2 x^3 + x^2 - 5 x + 2 sin(x) - 3, the target without noise."""
    return 1.5 * x**3 + x**2 - 5.0 * x + 2.0 * np.sin(x) - 3.0


def draw(config, seed):
    """Draws the training and the validation pairs of a seed.

    Args:
        config: A `TargetConfig`.
        seed: Integer.

    Returns:
        Two tuples of inputs and noisy targets, `(examples, 1)` float32 each.
    """
    generator = np.random.default_rng(seed)

    def pairs(size):
        x = generator.uniform(-config.limit, config.limit, (size, 1))
        y = curve(x) + generator.normal(0.0, config.noise, x.shape)
        return x.astype("float32"), y.astype("float32")

    return pairs(config.train_examples), pairs(config.validation_examples)


@keras.saving.register_keras_serializable("deq_keras_training")
class ScalarCell(deq_keras.layers.EquilibriumCell):
    """Cell of a scalar state: a perceptron with one hidden layer.

        f(z; x) = W2^T relu(W1 z + U x + b)

    Initially, `W1`, `U` and `b` are uniform on (-1, 1) and `W2` on (-1, 1) /
    sqrt(units). df/dz then has a standard deviation of about 0.24, and the iteration
    converges at initialization.

    Args:
        units: Positive integer. Hidden units. The cell has `4 * units` parameters.
            Defaults to `50`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Input shape:
        Of `inject`: `(batch, 1)`.

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

    def inject(self, inputs, training=False):
        """Returns U x + b of the inputs x, `(batch, units)`."""
        del training
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


def build(config):
    """Builds the model x -> z*(x) of a `ScalarModelConfig`.

    Raises:
        InputError: If a component rejects an argument.
    """
    with config_errors("model"):
        layer = equilibrium(ScalarCell(config.units, name="cell"), config)
        inputs = keras.Input((1,), name="x")
        return keras.Model(inputs, layer(inputs), name="scalar_equilibrium")
