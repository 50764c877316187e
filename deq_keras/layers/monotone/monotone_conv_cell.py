"""The monotone cell of one convolution."""

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_integer
from deq_keras.layers.monotone.circular_convolution import spectrum
from deq_keras.layers.monotone.monotone_image_cell import MonotoneImageCell
from deq_keras.layers.monotone.tier import Tier


@keras.saving.register_keras_serializable(package="deq_keras")
class MonotoneConvCell(MonotoneImageCell):
    """Monotone cell of convolutions on maps of one resolution, for images.

    ```
    f(z, x) = s(W z + U x + b),    W = (1 - m) I - A^T A + B - B^T
    ```

    A, B and U are convolutions of 3 x 3, A and B of a direction and a learned norm.
    Those of the state are circular, which Fourier transforms turn into products, and
    so the resolvent. The state has a border of zeros around the image, one position
    wide, so that nothing meets beyond the borders.

    Args:
        filters: Positive integer. Channels of the state.
        m: Float > 0. See `MonotoneCell`. Defaults to `1.0`.
        activation: See `MonotoneCell`. Defaults to `"relu"`.
        sign: `1`, or `-1` for a network that was trained elsewhere with + A^T A in W.
            Then I - W is monotone only while |A|^2 < m, which training does not ensure;
            see `strong_monotonicity`. Defaults to `1`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        state: Tensor of shape `(batch, height + 2, width + 2, filters)`.
        injection: What `inject` returned for this solve.

    Input shape:
        Of `inject`: `(batch, height, width, channels)`, of a static size.

    Output shape:
        `(batch, height + 2, width + 2, filters)`.

    Raises:
        ValueError: If `m` is not positive, the activation unknown, or the inputs no
            images of a static size.

    Example:

    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.MonotoneConvCell(4))
    >>> layer(np.ones((2, 8, 8, 3), "float32")).shape
    TensorShape([2, 10, 10, 4])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 5.
    """

    def __init__(self, filters, m=1.0, activation="relu", sign=1, **kwargs):
        self.filters = check_count("filters", filters)
        super().__init__(self.filters, 0, m, activation, **kwargs)
        self.sign = check_integer("sign", sign, -1, 1)
        if self.sign == 0:
            raise ValueError("`sign` must be 1 or -1. Received: sign=0.")
        self.tier = Tier(
            self.filters,
            None,
            self.m,
            self.sign,
            name="tier",
            dtype=self.dtype_policy,
        )

    def inject(self, inputs, training=False):
        """Returns a dict of the state `"bias"`, U x + b, and of kernels, `"operator"`.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Without effect.
        """
        del training
        return {"bias": self.projected(inputs), "operator": self.tier.kernels()}

    def linear(self, state, operator):
        return self.tier.linear(state, operator)

    def resolvent(self, operator, alpha):
        return self.tier.resolvent(operator, alpha, *self.size_of_tier(0))

    def strong_monotonicity(self):
        """Returns m, or m - |A|^2 for a negative sign: a scalar tensor."""
        if self.sign == 1:
            return self.m
        matrices = spectrum(self.tier.symmetric.kernel(), *self.size_of_tier(0))
        return self.m - ops.max(ops.norm(matrices, 2, axis=(-2, -1))) ** 2

    def get_config(self):
        return {**super().get_config(), "filters": self.filters, "sign": self.sign}
