"""The monotone cell of one convolution."""

import keras

from deq_keras.checks import check_count
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

    def __init__(self, filters, m=1.0, activation="relu", **kwargs):
        self.filters = check_count("filters", filters)
        super().__init__(self.filters, 0, m, activation, **kwargs)
        self.tier = Tier(
            self.filters, None, self.m, name="tier", dtype=self.dtype_policy
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

    def get_config(self):
        return {**super().get_config(), "filters": self.filters}
