"""The monotone cell with convolutions on several resolutions."""

import keras
from keras import ops

from deq_keras.core.checks import check_counts
from deq_keras.layers.monotone.circular_convolution import convolve, convolve_transpose
from deq_keras.layers.monotone.monotone_image_cell import MonotoneImageCell
from deq_keras.layers.monotone.tier import Tier


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

    def __init__(self, filters, m=1.0, activation="relu", **kwargs):
        self.filters = check_counts("filters", filters)
        num_halvings = len(self.filters) - 1
        super().__init__(self.filters[0], num_halvings, m, activation, **kwargs)
        self.tiers = [
            Tier(own, following, self.m, name=f"tier_{i}", dtype=self.dtype_policy)
            for i, (own, following) in enumerate(
                zip(self.filters, [*self.filters[1:], None], strict=True)
            )
        ]

    def inject(self, inputs, training=False):
        """Returns a dict of the state `"bias"` and the kernels `"operator"`.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Ignored.
        """
        del training
        bias = [self.projected(inputs)]
        for i, filters in enumerate(self.filters[1:], start=1):
            shape = (ops.shape(inputs)[0], *self.size_of_tier(i), filters)
            bias.append(ops.zeros(shape, dtype=self.solver_dtype))
        return {"bias": bias, "operator": [tier.kernels() for tier in self.tiers]}

    def linear(self, state, operator):
        products, from_above = [], None
        for tier, maps, kernels in zip(self.tiers, state, operator, strict=True):
            products.append(tier.linear(maps, kernels, from_above))
            from_above = _down(maps, kernels)
        return products

    def resolvent(self, operator, alpha):
        resolvents = [
            tier.resolvent(kernels, alpha, *self.size_of_tier(i))
            for i, (tier, kernels) in enumerate(zip(self.tiers, operator, strict=True))
        ]

        def resolvent(state):
            results, from_above = [], None
            for apply, maps, kernels in zip(resolvents, state, operator, strict=True):
                if from_above is not None:
                    inner = convolve_transpose(from_above, kernels["symmetric"])
                    maps = maps - 2.0 * alpha * inner
                results.append(apply(maps))
                from_above = _down(results[-1], kernels)
            return results

        return resolvent

    def get_config(self):
        return {**super().get_config(), "filters": self.filters}


def _down(maps, kernels):
    """Applies C to maps, on the grid of the next tier. Returns `None` without C."""
    if "down" not in kernels:
        return None
    lower = convolve(maps, kernels["down"], strides=2)
    # Including its border, the next tier has one more row and column than half of them.
    return ops.pad(lower, ((0, 0), (0, 1), (0, 1), (0, 0)))
