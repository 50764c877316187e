"""A weight-normalized dense layer."""

import keras

from deq_keras.core.checks import check_count
from deq_keras.layers.normalization.weight_normalization import WeightNormalization


@keras.saving.register_keras_serializable(package="deq_keras")
class WeightNormalizedDense(WeightNormalization, keras.layers.Dense):
    """Dense layer with a weight-normalized kernel.

    ```
    outputs = activation(inputs @ (g * v / ||v||) + bias)
    ```

    with the norm over the inputs of each unit, so `g` has the shape `(units,)`.
    Weight normalization bounds how far one step of an optimizer can move a cell,
    which keeps equilibria stable in training (Bai, Koltun and Kolter, 2020).

    Args:
        units: Positive integer. Size of the output space.
        **kwargs: Other arguments of `keras.layers.Dense`, with the same
            meaning. `kernel_regularizer` and `kernel_constraint` act on `v`.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., input_dim)`.
        kernel: Tensor of shape `(input_dim, units)`, the value of
            `normalized_kernel()` at the start of a solve. Defaults to `None`, which
            computes it from the weights in this call.

    Input shape:
        `(batch, ..., input_dim)`.

    Output shape:
        `(batch, ..., units)`.

    Example:

    >>> layer = WeightNormalizedDense(4)
    >>> layer.build((None, 3))
    >>> kernel = layer.normalized_kernel()       # once, in `inject`
    >>> tuple(layer(keras.ops.ones((2, 3)), kernel=kernel).shape)
    (2, 4)

    Reference:
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868).
    """

    def __init__(self, units, *args, **kwargs):
        super().__init__(check_count("units", units), *args, **kwargs)
