"""Monotone cells of convolutions, on images of one or several sizes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from deq_keras.core.checks import check_count, check_counts, check_integer
from deq_keras.core.serialization import Config
from deq_keras.layers.circular_convolution import (
    convolve,
    convolve_transpose,
    spectrum,
)
from deq_keras.layers.kernel_initializer import FAN_IN_UNIFORM
from deq_keras.layers.monotone import tier
from deq_keras.layers.monotone.monotone_cell import MonotoneCell


class MonotoneImageCell(MonotoneCell):
    """Base class of monotone cells for images: provides U and the border of the state.

    The state is one position wider than the image at each side, and zero there, so that
    opposite sides do not interact through the circular convolutions.

    Args:
        filters: Positive integer. Channels of U x.
        num_halvings: Non-negative integer. Number of times the image is halved.
        m: Positive float. See `MonotoneCell`.
        activation: See `MonotoneCell`.
        **kwargs: Arguments of `keras.layers.Layer`.
    """

    def __init__(
        self, filters: int, num_halvings: int, m: float, activation: Any, **kwargs: Any
    ) -> None:
        super().__init__(m, activation, **kwargs)
        self.num_halvings = num_halvings
        self.projection = keras.layers.Conv2D(
            filters,
            3,
            padding="same",
            data_format="channels_last",
            kernel_initializer=FAN_IN_UNIFORM,
            name="projection",
            dtype=self.solver_dtype,
        )

    def build(self, input_shape: Any) -> None:
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                f"Cell '{self.name}' expects images (batch, height, width, channels) "
                "of a static size. Received: inputs of shape "
                f"{tuple(input_shape)}."
            )
        self.image_size = tuple(input_shape[1:3])
        divisor = 2**self.num_halvings
        if any(side % divisor for side in self.image_size):
            raise ValueError(
                f"Cell '{self.name}' has {self.num_halvings + 1} tiers, each half as "
                "large as the one before, and expects images whose sides are multiples "
                f"of {divisor}. Pad or resize them, or use fewer tiers. Received: "
                f"inputs of shape {tuple(input_shape)}."
            )
        self.projection.build(input_shape)

    def project_inputs(self, inputs: Any) -> Any:
        """Returns U x + b on the grid of the state."""
        if not self.built:
            self.build(tuple(inputs.shape))
        inputs = ops.cast(inputs, self.solver_dtype)
        bordered = ops.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return self.projection(bordered)

    def size_of_tier(self, index: int) -> tuple[int, ...]:
        """Returns height and width of a tier of the state. Tier 0 is the finest."""
        return tuple(side // 2**index + 2 for side in self.image_size)

    def constrain(self, leaf: Any) -> Any:
        height, width = leaf.shape[1:3]
        inside = np.pad(np.ones((height - 2, width - 2, 1)), ((1, 1), (1, 1), (0, 0)))
        return leaf * ops.convert_to_tensor(inside, leaf.dtype)

    def input_norm(self) -> float:
        matrices = spectrum(self.projection.kernel, *self.size_of_tier(0))
        return float(np.linalg.norm(matrices, 2, axis=(-2, -1)).max())


@keras.saving.register_keras_serializable(package="deq_keras")
class MonotoneConvCell(MonotoneImageCell):
    """Monotone cell with convolutions on a single resolution, for images.

    ```
    f(z, x) = s(W z + U x + b),    W = (1 - m) I - A^T A + B - B^T
    ```

    A, B and U are 3 x 3 convolutions. A and B have a learned direction and norm. The
    convolutions of the state are circular, so Fourier transforms turn them and the
    resolvent into products. The state has a border of zeros around the image, one
    position wide, so that opposite sides do not interact.

    Args:
        filters: Positive integer. Channels of the state.
        m: Positive float. See `MonotoneCell`. Defaults to `1.0`.
        activation: See `MonotoneCell`. Defaults to `"relu"`.
        sign: `1`, or `-1` for an imported network that was trained with + A^T A in W.
            With `-1`, I - W is monotone only if |A|^2 < m, which training does not
            ensure; see `strong_monotonicity`. Defaults to `1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, height + 2, width + 2, filters)`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, height, width, channels)`, for `inject`, with a static size.

    Output shape:
        `(batch, height + 2, width + 2, filters)`.

    Raises:
        ValueError: If `m` is not positive, the activation is unknown, or the inputs are
            not images of a static size.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.MonotoneConvCell(4))
    >>> layer(np.ones((2, 8, 8, 3), "float32")).shape
    TensorShape([2, 10, 10, 4])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 5.
    """

    def __init__(
        self,
        filters: int,
        m: float = 1.0,
        activation: Any = "relu",
        sign: int = 1,
        **kwargs: Any,
    ) -> None:
        self.filters = check_count("filters", filters)
        super().__init__(self.filters, 0, m, activation, **kwargs)
        self.sign = check_integer("sign", sign, -1, 1)
        if self.sign == 0:
            raise ValueError("`sign` must be 1 or -1. Received: sign=0.")
        self.tier = tier.Tier(
            self.filters,
            None,
            self.m,
            self.sign,
            name="tier",
            dtype=self.dtype_policy,
        )

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Returns a dict of the state `"bias"`, U x + b, and the tensors `"operator"`.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Ignored.
        """
        del training
        bias = self.project_inputs(inputs)
        return {"bias": bias, "operator": self.tier.operator(*self.size_of_tier(0))}

    def linear(self, state: Any, operator: Any) -> Any:
        return tier.linear(state, operator)

    def resolvent(self, operator: Any, alpha: float) -> Callable[[Any], Any]:
        return tier.resolvent(operator, alpha, *self.size_of_tier(0))

    def strong_monotonicity(self) -> Any:
        """Returns m, or m - |A|^2 for a negative sign: a scalar tensor."""
        if self.sign == 1:
            return self.m
        matrices = spectrum(self.tier.symmetric.kernel(), *self.size_of_tier(0))
        return self.m - ops.max(ops.norm(matrices, 2, axis=(-2, -1))) ** 2

    def get_config(self) -> Config:
        return {**super().get_config(), "filters": self.filters, "sign": self.sign}


@keras.saving.register_keras_serializable(package="deq_keras")
class MonotoneMultiscaleCell(MonotoneImageCell):
    """Monotone cell with convolutions on tiers of maps, each of half the resolution.

    ```
    f(z, x)_i = s(sum_j W_ij z_j + [i = 0] (U x + b))
    W_ii = (1 - m) I - A_i^T A_i + B_i - B_i^T - C_i^T C_i
    W_i+1,i = -2 A_i+1^T C_i
    ```

    C_i is a convolution with stride 2 from tier i to the next. All other convolutions
    are as in `MonotoneConvCell`. Tier 0 sees the image, and a classifier reads the last
    tier. The resolvent is computed tier by tier.

    Args:
        filters: Tuple of positive integers. Channels of each tier, the finest first.
        m: Positive float. See `MonotoneCell`. Defaults to `1.0`.
        activation: See `MonotoneCell`. Defaults to `"relu"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: List of tensors of shape `(batch, height / 2^i + 2, width / 2^i + 2,
            filters[i])`.
        injection: Dict. Result of `inject` for this solve.

    Input shape:
        `(batch, height, width, channels)`, for `inject`, with a static size.

    Output shape:
        Same as the state.

    Raises:
        ValueError: If `m` is not positive, the activation is unknown, or the inputs are
            not images of a static size that can be halved for each further tier.

    Example:

    >>> cell = deq_keras.layers.MonotoneMultiscaleCell((4, 6))
    >>> fine, coarse = deq_keras.layers.DEQ(cell)(np.ones((2, 8, 8, 3), "float32"))
    >>> coarse.shape
    TensorShape([2, 6, 6, 6])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 5 and
      appendix E.
    """

    def __init__(
        self,
        filters: tuple[int, ...],
        m: float = 1.0,
        activation: Any = "relu",
        **kwargs: Any,
    ) -> None:
        self.filters = check_counts("filters", filters)
        num_halvings = len(self.filters) - 1
        super().__init__(self.filters[0], num_halvings, m, activation, **kwargs)
        self.tiers = [
            tier.Tier(own, following, self.m, name=f"tier_{i}", dtype=self.dtype_policy)
            for i, (own, following) in enumerate(
                zip(self.filters, [*self.filters[1:], None], strict=True)
            )
        ]

    def inject(self, inputs: Any, training: bool = False) -> dict[str, Any]:
        """Returns a dict of the state `"bias"` and the tensors `"operator"`.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Ignored.
        """
        del training
        bias = [self.project_inputs(inputs)]
        for i, filters in enumerate(self.filters[1:], start=1):
            shape = (ops.shape(inputs)[0], *self.size_of_tier(i), filters)
            bias.append(ops.zeros(shape, dtype=self.solver_dtype))
        operator = [
            one.operator(*self.size_of_tier(i)) for i, one in enumerate(self.tiers)
        ]
        return {"bias": bias, "operator": operator}

    def linear(self, state: Any, operator: Any) -> Any:
        products, from_above = [], None
        for maps, parts in zip(state, operator, strict=True):
            products.append(tier.linear(maps, parts, from_above))
            from_above = _down(maps, parts)
        return products

    def resolvent(self, operator: Any, alpha: float) -> Callable[[Any], Any]:
        resolvents = [
            tier.resolvent(parts, alpha, *self.size_of_tier(i))
            for i, parts in enumerate(operator)
        ]

        def resolvent(state: Any) -> Any:
            results, from_above = [], None
            for apply, maps, parts in zip(resolvents, state, operator, strict=True):
                if from_above is not None:
                    inner = convolve_transpose(from_above, parts["symmetric"])
                    maps = maps - 2.0 * alpha * inner
                results.append(apply(maps))
                from_above = _down(results[-1], parts)
            return results

        return resolvent

    def strong_monotonicity(self) -> Any:
        """Returns m."""
        return self.m

    def get_config(self) -> Config:
        return {**super().get_config(), "filters": self.filters}


def _down(maps: Any, operator: Any) -> Any:
    """Applies C to maps, on the grid of the next tier. Returns `None` without C."""
    if "down" not in operator:
        return None
    lower = convolve(maps, operator["down"], strides=2)
    # Including its border, the next tier has one more row and column than half of them.
    return ops.pad(lower, ((0, 0), (0, 1), (0, 1), (0, 0)))
