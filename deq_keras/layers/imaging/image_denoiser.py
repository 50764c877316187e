"""A small residual network that denoises images."""

import math
from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_count,
    check_integer,
    check_optional_count,
    check_positive_fraction,
)
from deq_keras.core.serialization import arguments_of
from deq_keras.core.structure import at_least_float32
from deq_keras.layers.circular_convolution import spectrum
from deq_keras.layers.composite_layer import CompositeLayer
from deq_keras.layers.normalization import SpectrallyNormalizedConv2D
from deq_keras.layers.normalization.spectral_normalization import spectral_norm_bound


@keras.saving.register_keras_serializable(package="deq_keras")
class ImageDenoiser(CompositeLayer):
    """Residual network of 3 x 3 convolutions that denoises images.

    ```
    D(x) = x + r(x)          without max_norm; r = 0 at first
    D(x) = (x + r(x)) / 2    with max_norm, and |r(x) - r(y)| <= max_norm |x - y|
    ```

    r is a chain of convolutions with ReLUs between them. It reads all channels of x and
    changes the first `channels`; further channels are conditions, such as a noise
    level.

    With `max_norm`, D is firmly non-expansive, and a contraction if `max_norm` is below
    1. Then a reconstruction cell has exactly one equilibrium, but a darker one: D
    scales images by up to `(1 + max_norm) / 2`. Each convolution is spectrally
    normalized to the norm `max_norm^(1 / num_layers)`, by an estimate with a margin:
    see `SpectrallyNormalizedConv2D`. `lipschitz_constant` is rigorous instead, and thus
    larger than `(1 + max_norm) / 2`, most of all for images of a few pixels: a
    certificate needs a `max_norm` clearly below 1.

    Args:
        filters: Positive integer. Channels between the convolutions. Defaults to `32`.
        num_layers: Integer >= 2. Number of convolutions. Defaults to `4`.
        max_norm: Float in (0, 1]. Lipschitz constant of r. Defaults to `None`, no
            bound.
        channels: Positive integer. Channels of the denoised image. Defaults to `None`,
            all channels of the input.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Input shape:
        `(batch, height, width, input_channels)`, with a static height and width if
        `max_norm` is set.

    Output shape:
        `(batch, height, width, channels)`.

    Raises:
        ValueError: If an argument is invalid, or the input has fewer channels than
            `channels`.

    Example:

    >>> denoiser = deq_keras.layers.ImageDenoiser(filters=8, num_layers=3)
    >>> tuple(denoiser(np.ones((2, 8, 8, 1), "float32")).shape)
    (2, 8, 8, 1)

    Reference:

    - Zhang et al. (2017), "Beyond a Gaussian denoiser: residual learning of deep CNN
      for image denoising".
    - Pesquet, Repetti, Terris and Wiaux (2021), "Learning maximally monotone operators
      for image recovery", for the form with `max_norm`.
    """

    def __init__(
        self,
        filters: int = 32,
        num_layers: int = 4,
        max_norm: float | None = None,
        channels: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_count("filters", filters)
        self.num_layers = check_integer("num_layers", num_layers, 2)
        self.max_norm = max_norm
        if max_norm is not None:
            self.max_norm = check_positive_fraction("max_norm", max_norm)
        self.channels = check_optional_count("channels", channels)
        self.convolutions = [
            self._convolution(self.filters, "relu", f"conv{i}")
            for i in range(1, self.num_layers)
        ]

    def _convolution(self, filters: int, activation: str | None, name: str) -> Any:
        options: Any = {
            "padding": "same",
            "data_format": "channels_last",
            "activation": activation,
            "name": name,
            "dtype": self.dtype_policy,
        }
        if self.max_norm is None:
            # Starts at D(x) = x, from where the solves of a cell converge.
            initializer = "glorot_uniform" if activation else "zeros"
            return keras.layers.Conv2D(
                filters, 3, kernel_initializer=initializer, **options
            )
        max_norm = self.max_norm ** (1 / self.num_layers)
        return SpectrallyNormalizedConv2D(filters, 3, max_norm=max_norm, **options)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = self.compute_output_shape(input_shape)
        self.convolutions.append(
            self._convolution(shape[-1], None, f"conv{self.num_layers}")
        )
        shape = tuple(input_shape)
        for convolution in self.convolutions:
            convolution.build(shape)
            shape = (*shape[:-1], convolution.filters)
        self._size = shape[1:3]

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> Any:
        input_channels = input_shape[-1] if len(input_shape) == 4 else None
        if input_channels is None or (self.channels or 1) > input_channels:
            raise ValueError(
                f"Layer '{self.name}' expects images (batch, height, width, channels) "
                "with a static number of channels, at least `channels`. Received: "
                f"inputs of shape {tuple(input_shape)}, channels={self.channels}."
            )
        return (*input_shape[:-1], self.channels or input_channels)

    def call(self, inputs: Any) -> Any:
        update = inputs
        for convolution in self.convolutions:
            update = convolution(update)
        outputs = inputs[..., : update.shape[-1]] + update
        return outputs if self.max_norm is None else outputs / 2

    def lipschitz_constant(self, kernels: list[Any] | None = None) -> Any:
        """Returns a Lipschitz constant of D, or `None` without `max_norm`.

        It is (1 + the product of the norms of the convolutions) / 2, with upper bounds
        of the norms. The bounds cost products of two matrices of `2 filters` x `2
        filters` at each frequency of an image, so they are not part of a solve.

        Args:
            kernels: List of tensors, the kernels of the convolutions, in any order.
                Defaults to `None`, which computes them from the weights.

        Returns:
            Scalar tensor or `None`.
        """
        if self.max_norm is None:
            return None
        if kernels is None:
            kernels = [one.normalized_kernel() for one in self.convolutions]
        norms = [_convolution_norm(kernel, self._size) for kernel in kernels]
        return (1 + math.prod(norms)) / 2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **arguments_of(self, ImageDenoiser)}


def _convolution_norm(kernel: Any, size: tuple[int, int]) -> Any:
    """Returns an upper bound of the norm of a convolution with zero padding.

    The convolution is a circular convolution of a larger image, between padding and
    cropping. Its norm is at most the largest norm of the matrices (channels, filters)
    at the frequencies of the larger image.

    Args:
        kernel: Tensor `(3, 3, channels, filters)`.
        size: Pair of integers. Height and width of the images.
    """
    kernel = at_least_float32(kernel)
    rows, columns = (n + side - 1 for n, side in zip(size, kernel.shape[:2]))
    # A real kernel has conjugate matrices at opposite frequencies.
    matrices = spectrum(kernel, rows, columns)
    return ops.max(spectral_norm_bound(matrices))
