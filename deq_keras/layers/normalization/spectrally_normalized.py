"""Dense layer and convolution with a bounded spectral norm."""

import keras

from deq_keras.core.checks import check_count
from deq_keras.layers.normalization.normalized_kernel import ConvolutionKernel
from deq_keras.layers.normalization.spectral_normalization import SpectralNormalization


@keras.saving.register_keras_serializable(package="deq_keras")
class SpectrallyNormalizedDense(SpectralNormalization, keras.layers.Dense):
    """Dense layer whose kernel has a spectral norm of at most `max_norm`.

    ```
    outputs = activation(inputs @ (w * min(1, max_norm / sigma)) + bias)
    ```

    with sigma the largest singular value of `w`. With `max_norm` below one and an
    activation that does not expand, such as tanh or ReLU, a cell of this layer has
    exactly one equilibrium.

    A power iteration estimates sigma. Its vector is a weight of the layer. Each
    training step updates the vector once, so the norm can exceed `max_norm` slightly
    while the kernel changes. Unlike `keras.layers.SpectralNormalization`, the layer
    never scales kernels up, and does not update the vector during a solve.

    Args:
        units: Positive integer. Size of the output space.
        max_norm: Positive float. Bound of the spectral norm. Defaults to `0.99`, as
            torchdeq recommends for implicit graph networks.
        **kwargs: Other arguments of `keras.layers.Dense`, with the same meaning.
            `kernel_regularizer` and `kernel_constraint` act on `w`.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., input_dim)`.
        kernel: Tensor of shape `(input_dim, units)`, the value of
            `normalized_kernel(training)` at the start of a solve. Defaults to `None`,
            which computes it from the weights in this call.
        training: Boolean. Whether a call without `kernel` updates the vector.

    Input shape:
        `(batch, ..., input_dim)`.

    Output shape:
        `(batch, ..., units)`.

    Raises:
        ValueError: If `max_norm` is not positive.

    Example:

    >>> layer = SpectrallyNormalizedDense(16, max_norm=0.9, activation="tanh")
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.cell_from(layer))
    >>> tuple(deq(keras.ops.ones((2, 3))).shape)
    (2, 16)

    Reference:
        [Miyato et al., 2018](https://arxiv.org/abs/1802.05957).
    """

    def __init__(self, units, *args, max_norm=0.99, **kwargs):
        super().__init__(
            check_count("units", units), *args, max_norm=max_norm, **kwargs
        )


@keras.saving.register_keras_serializable(package="deq_keras")
class SpectrallyNormalizedConv2D(
    ConvolutionKernel, SpectralNormalization, keras.layers.Conv2D
):
    """2D convolution whose linear map has a spectral norm of at most `max_norm`.

    ```
    outputs = activation(conv(inputs, w * min(1, max_norm / sigma)) + bias)
    ```

    with sigma the largest singular value of the convolution with `w`, as a map of whole
    feature maps, with its padding, strides and dilation. The norm of the kernel as
    a matrix, which other implementations use, is not a bound of this norm. See
    `SpectrallyNormalizedDense`.

    The bound holds for the height and width with which the layer was built. The layer
    accepts no other sizes, because the norm grows with the size of the map.

    Args:
        filters: Positive integer. Number of output channels.
        kernel_size: Positive integer, or a tuple of two. Height and width of the
            window.
        max_norm: Positive float. Bound of the spectral norm. Defaults to `0.99`, as
            torchdeq recommends for implicit graph networks.
        **kwargs: Other arguments of `keras.layers.Conv2D`, with the same meaning.
            `kernel_regularizer` and `kernel_constraint` act on `w`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.
        kernel: Tensor of shape `kernel_size + (channels, filters)`, the value of
            `normalized_kernel(training)` at the start of a solve. Defaults to `None`,
            which computes it from the weights in this call.
        training: Boolean. Whether a call without `kernel` updates the vector.

    Input shape:
        `(batch, height, width, channels)`, with a static height and width.

    Output shape:
        `(batch, new_height, new_width, filters)`.

    Raises:
        ValueError: If `max_norm` is not positive, or the height or width is unknown.

    Example:

    >>> layer = SpectrallyNormalizedConv2D(4, 3, max_norm=0.9, padding="same")
    >>> tuple(layer(keras.ops.ones((2, 8, 8, 5))).shape)
    (2, 8, 8, 4)

    Reference:

    - [Miyato et al., 2018](https://arxiv.org/abs/1802.05957).
    - [Gouk et al., 2018](https://arxiv.org/abs/1804.04368), for convolutions.
    """

    def __init__(self, filters, kernel_size, *args, max_norm=0.99, **kwargs):
        super().__init__(
            check_count("filters", filters),
            kernel_size,
            *args,
            max_norm=max_norm,
            **kwargs,
        )

    def _vector_shape(self, input_shape):
        shape = tuple(input_shape[1:])
        if None in shape:
            raise ValueError(
                f"Layer '{self.name}' bounds the norm of a map of one size. Build it "
                "with a static height and width, for example keras.Input((32, 32, 3)). "
                f"Received: inputs of shape {tuple(input_shape)}."
            )
        axes = {axis: size for axis, size in enumerate(shape, start=1)}
        self.input_spec = keras.InputSpec(ndim=len(input_shape), axes=axes)
        return (1, *shape)
