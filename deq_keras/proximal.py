"""Activations as proximal maps, which operator splitting solvers require."""

from typing import Any

import keras
from keras import ops

from deq_keras.core import serialization
from deq_keras.core.rounding import EPSILON
from deq_keras.core.serialization import Config, Configured

__all__ = [
    "ALL_OBJECTS",
    "ProximalMap",
    "Relu",
    "Sigmoid",
    "SmoothProximalMap",
    "Softplus",
    "Tanh",
    "get",
]

# Newton's method needs about six steps. Bisection, which replaces steps outside of the
# bracket, needs one step per bit of a float64.
_MAX_STEPS = 60


class ProximalMap(Configured):
    """An activation s as the proximal map of a convex scalar function h.

    Every nondecreasing and nonexpansive s, 0 <= s' <= 1, is a proximal map:

        s(x) = argmin_z (z - x)^2 / 2 + h(z),    prox(x, alpha) the same with alpha h

    Splittings with any step size alpha use alpha h and have the same equilibrium.
    """

    def __call__(self, inputs: Any) -> Any:
        """Returns s(x), `prox(x, 1)`."""
        raise NotImplementedError

    def derivative(self, inputs: Any) -> Any:
        """Returns s'(x), in [0, 1]."""
        raise NotImplementedError

    def proximal(self, inputs: Any, alpha: float) -> Any:
        """Returns `prox(x, alpha)`.

        Args:
            inputs: Floating-point tensor.
            alpha: Float > 0.
        """
        raise NotImplementedError


class SmoothProximalMap(ProximalMap):
    """A smooth activation, whose proximal map is computed by Newton's method.

    With z = s(p) and p = z + h'(z), the proximal map solves, for each number x,

        alpha p + (1 - alpha) s(p) = x

    The slope is between 1 and alpha everywhere. Iterates stay within a bracket.
    """

    def proximal(self, inputs: Any, alpha: float) -> Any:
        if alpha == 1.0:
            return self(inputs)
        point = ops.stop_gradient(self._solve(inputs, alpha))
        # A Newton step outside of the loop has the derivative of the solution, and two
        # steps have both the first and the second.
        for _ in range(2):
            error = self._excess(point, alpha) - inputs
            point = point - error / self._slope(point, alpha)
        return self(point)

    def _excess(self, point: Any, alpha: float) -> Any:
        return alpha * point + (1.0 - alpha) * self(point)

    def _slope(self, point: Any, alpha: float) -> Any:
        return alpha + (1.0 - alpha) * self.derivative(point)

    def _solve(self, inputs: Any, alpha: float) -> Any:
        inputs = ops.stop_gradient(inputs)
        rounding = 4.0 * EPSILON[inputs.dtype] * (1.0 + ops.abs(inputs))
        error = self._excess(inputs, alpha) - inputs
        reach = ops.abs(error) / min(alpha, 1.0)

        def step(point: Any, error: Any, low: Any, high: Any) -> tuple[Any, ...]:
            low = ops.where(error < 0, point, low)
            high = ops.where(error < 0, high, point)
            new = point - error / self._slope(point, alpha)
            is_inside = (low <= new) & (new <= high)
            new = ops.where(is_inside, new, (low + high) / 2)
            return new, self._excess(new, alpha) - inputs, low, high

        point, *_ = ops.while_loop(
            lambda point, error, low, high: ops.any(ops.abs(error) > rounding),
            step,
            (inputs, error, inputs - reach, inputs + reach),
            maximum_iterations=_MAX_STEPS,
        )
        return point


@keras.saving.register_keras_serializable(package="deq_keras")
class Relu(ProximalMap):
    """max(x, 0), the projection to non-negative numbers for any alpha.

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


ALL_OBJECTS = (Relu, Sigmoid, Softplus, Tanh)


def get(identifier: str | Config | ProximalMap) -> ProximalMap:
    """Returns a proximal map from a name, a config dict or an instance.

    Args:
        identifier: `"relu"`, `"sigmoid"`, `"softplus"`, `"tanh"`; a config dict; or a
            `ProximalMap`, which is returned unchanged.

    Raises:
        ValueError: For an unknown name.
    """
    return serialization.get(identifier, ProximalMap, ALL_OBJECTS, "proximal map")
