"""The monotone cell with convolutions on a single resolution."""

import keras
from keras import ops

from deq_keras.core.checks import check_count, check_integer
from deq_keras.layers.monotone.circular_convolution import spectrum
from deq_keras.layers.monotone.monotone_image_cell import MonotoneImageCell
from deq_keras.layers.monotone.tier import Tier


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
        """Returns a dict of the state `"bias"`, U x + b, and the kernels `"operator"`.

        Args:
            inputs: Tensor of shape `(batch, height, width, channels)`.
            training: Boolean. Ignored.
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
