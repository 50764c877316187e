"""The monotone cell with dense kernels."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from deq_keras.core.checks import check_count
from deq_keras.core.serialization import Config
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM
from deq_keras.layers.monotone.monotone_cell import MonotoneCell


@keras.saving.register_keras_serializable(package="deq_keras")
class MonotoneDenseCell(MonotoneCell):
    """Monotone cell with dense kernels, for vectors.

    ```
    f(z, x) = s(W z + U x + b),    W = (1 - m) I - A^T A + B - B^T
    ```

    Args:
        units: Positive integer. Size of the state.
        m: Positive float. See `MonotoneCell`. Defaults to `1.0`.
        activation: See `MonotoneCell`. Defaults to `"relu"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, units)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, ...)`, for `inject`, which flattens it to vectors.

    Output shape:
        `(batch, units)`.

    Raises:
        ValueError: If `m` is not positive, or the activation is unknown.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.MonotoneDenseCell(16, m=0.5))
    >>> x = np.ones((2, 3), "float32")
    >>> solution = layer.solve(x)
    >>> bound = layer.cell.distance_bound(solution.value, layer.inject(x))
    >>> bool(np.all(bound < 0.1))
    True

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 5.
    """

    def __init__(
        self, units: int, m: float = 1.0, activation: Any = "relu", **kwargs: Any
    ) -> None:
        super().__init__(m, activation, **kwargs)
        self.units = check_count("units", units)
        self.projection = keras.layers.Dense(
            self.units,
            kernel_initializer=FAN_IN_UNIFORM,
            name="projection",
            dtype=self.fixed_policy(self.solver_dtype),
        )

    def build(self, input_shape: Any) -> None:
        if None in input_shape[1:]:
            raise ValueError(
                f"Cell '{self.name}' expects inputs of a static size. Received: inputs "
                f"of shape {tuple(input_shape)}."
            )
        self.projection.build((input_shape[0], int(np.prod(input_shape[1:]))))
        # Each kernel draws its own random numbers.
        self.symmetric, self.skew = (
            self.add_weight(
                (self.units, self.units),
                initializer=FAN_IN_UNIFORM,
                autocast=False,
                name=name,
            )
            for name in ("symmetric", "skew")
        )

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Returns a dict of the state `"bias"`, U x + b, and `"operator"`, W^T.

        Args:
            inputs: Tensor of shape `(batch, ...)`.
            training: Boolean. Ignored.
        """
        del training
        if not self.built:
            self.build(tuple(inputs.shape))
        size = int(np.prod(inputs.shape[1:]))
        inputs = ops.reshape(inputs, (ops.shape(inputs)[0], size))
        a, b = (
            ops.cast(weight, self.solver_dtype)
            for weight in (self.symmetric, self.skew)
        )
        identity = ops.eye(self.units, dtype=self.solver_dtype)
        kernel = (1.0 - self.m) * identity - ops.transpose(a) @ a
        return {
            "bias": self.projection(inputs),
            "operator": kernel + ops.transpose(b) - b,
        }

    def linear(self, state: Any, operator: Any) -> Any:
        return state @ operator

    def resolvent(self, operator: Any, alpha: float) -> Callable[[Any], Any]:
        identity = ops.eye(self.units, dtype=operator.dtype)
        inverse = ops.inv(identity + alpha * (identity - operator))
        return lambda state: state @ inverse

    def strong_monotonicity(self) -> Any:
        """Returns m."""
        return self.m

    def input_norm(self) -> float:
        layer = self.projection
        if layer.quantization_mode in (None, "float8"):
            return float(np.linalg.norm(layer.kernel, 2))
        # The attribute holds integers, but the layer applies the dequantized kernel.
        identity = np.eye(layer.input_spec.axes[-1], dtype=self.solver_dtype)
        return float(np.linalg.norm(layer(identity) - layer.bias, 2))

    def get_config(self) -> Config:
        return {**super().get_config(), "units": self.units}
