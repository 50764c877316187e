"""Rectified Adam, which Keras does not have."""

import keras
import tensorflow as tf
from keras import ops


@keras.saving.register_keras_serializable("deq_keras_training")
class RectifiedAdam(keras.optimizers.Adam):
    """Adam without its adaptive rate while the variance of this rate is intractable.

    With rho_inf = 2 / (1 - beta_2) - 1 and

        rho_t = rho_inf - 2 t beta_2^t / (1 - beta_2^t),

    steps with rho_t <= 4 are steps of the debiased momentum alone. Later steps are
    Adam's, times

        r_t = sqrt((rho_t - 4) (rho_t - 2) rho_inf
                   / ((rho_inf - 4) (rho_inf - 2) rho_t)).

    Args:
        learning_rate: See `keras.optimizers.Adam`.
        **arguments: Arguments of `keras.optimizers.Adam` but `amsgrad`.

    Reference:
        Liu et al. (2020), "On the variance of the adaptive learning rate and beyond",
        algorithm 2.
    """

    def __init__(self, learning_rate=0.001, **arguments):
        arguments.pop("amsgrad", None)  # `from_config` passes Adam's default.
        super().__init__(learning_rate, **arguments)

    def update_step(self, gradient, variable, learning_rate):
        # Adds rows of `IndexedSlices` that have the same index, before their square.
        gradient = ops.cast(tf.convert_to_tensor(gradient), variable.dtype)
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - self.beta_2))
        plain, adaptive = self._rates()
        rate = ops.cast(learning_rate, "float64")
        adaptive = ops.cast(rate * adaptive, variable.dtype)
        plain = ops.cast(rate * plain, variable.dtype)
        scale = plain + adaptive / (ops.sqrt(velocity) + self.epsilon)
        self.assign_sub(variable, momentum * scale)

    def _rates(self):
        """Returns the factors of the momentum and of Adam's step; one of them is 0."""
        # In float32, rho_t would be a difference of almost equal numbers.
        step = ops.cast(self.iterations + 1, "float64")
        power_1, power_2 = self.beta_1**step, self.beta_2**step
        largest = 2 / (1 - self.beta_2) - 1
        length = largest - 2 * step * power_2 / (1 - power_2)
        is_tractable = length > 4
        length = ops.where(is_tractable, length, largest)
        rectification = ops.sqrt(
            (length - 4)
            * (length - 2)
            * largest
            / ((largest - 4) * (largest - 2) * length)
        )
        plain = 1 / (1 - power_1)
        adaptive = plain * rectification * ops.sqrt(1 - power_2)
        return (
            ops.where(is_tractable, 0.0, plain),
            ops.where(is_tractable, adaptive, 0.0),
        )
