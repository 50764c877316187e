"""ReLU, hyperbolic tangent, sigmoid and softplus as proximal maps."""

from typing import Any

import keras
from keras import ops

from deq_keras.proximal.proximal_map import ProximalMap, SmoothProximalMap


@keras.saving.register_keras_serializable(package="deq_keras")
class Relu(ProximalMap):
    """max(x, 0): the projection to what is not negative, whatever alpha is.

    Example:

    >>> relu = deq_keras.proximal.Relu()
    >>> float(relu.proximal(tf.constant(-2.0), alpha=0.5))
    0.0
    """

    def __call__(self, inputs: Any) -> Any:
        return ops.relu(inputs)

    def derivative(self, inputs: Any) -> Any:
        return ops.cast(inputs > 0, inputs.dtype)

    def proximal(self, inputs: Any, alpha: float) -> Any:
        return ops.relu(inputs)


@keras.saving.register_keras_serializable(package="deq_keras")
class Tanh(SmoothProximalMap):
    """The hyperbolic tangent."""

    def __call__(self, inputs: Any) -> Any:
        return ops.tanh(inputs)

    def derivative(self, inputs: Any) -> Any:
        return 1.0 - ops.square(ops.tanh(inputs))


@keras.saving.register_keras_serializable(package="deq_keras")
class Sigmoid(SmoothProximalMap):
    """The logistic function 1 / (1 + exp(-x))."""

    def __call__(self, inputs: Any) -> Any:
        return ops.sigmoid(inputs)

    def derivative(self, inputs: Any) -> Any:
        return ops.sigmoid(inputs) * ops.sigmoid(-inputs)


@keras.saving.register_keras_serializable(package="deq_keras")
class Softplus(SmoothProximalMap):
    """log(1 + exp(x)), a smooth ReLU."""

    def __call__(self, inputs: Any) -> Any:
        return ops.softplus(inputs)

    def derivative(self, inputs: Any) -> Any:
        return ops.sigmoid(inputs)
