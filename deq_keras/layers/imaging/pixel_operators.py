"""Operators on neighboring pixels: blur, missing pixels, low resolution."""

from typing import Any

import keras
import numpy as np
from keras import ops

from deq_keras.core.checks import check_choice, check_count
from deq_keras.layers.imaging.fourier import apply_spectrum, inverse_spectrum
from deq_keras.layers.imaging.linear_operator import (
    LinearOperator,
    ProjectionOperator,
    check_array,
    check_mask,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class Blur(LinearOperator):
    """Convolves each channel of an image with a kernel.

    ```
    (A z)[i, j] = sum_{k, l} kernel[k, l] z[i + c - k, j + d - l],   c, d: its center
    ```

    Equals `scipy.ndimage.convolve` with the mode `"wrap"` or `"constant"`. The
    measurements have the shape of the image.

    Args:
        kernel: Array `(rows, columns)` with odd sides that are not longer than the
            image. Pixels keep their mean if it sums to 1.
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        boundary: `"circular"`: the image continues at its opposite side. `"zero"`: it
            is surrounded by zeros. Only a circular blur has an `inverse`, and its
            `norm` is exact; for `"zero"`, it is an upper bound. Defaults to
            `"circular"`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> operator = deq_keras.layers.Blur(np.ones((3, 3)) / 9, (8, 8, 1))
    >>> tuple(operator(np.ones((2, 8, 8, 1), "float32")).shape)
    (2, 8, 8, 1)
    >>> round(operator.norm, 6)
    1.0
    """

    def __init__(
        self,
        kernel: Any,
        image_shape: tuple[int, int, int],
        boundary: str = "circular",
        **kwargs: Any,
    ) -> None:
        super().__init__(image_shape, **kwargs)
        self.kernel = check_array("kernel", kernel, 2)
        self.boundary = check_choice("boundary", boundary, ("circular", "zero"))
        sides = self.kernel.shape
        fits = all(s <= n for s, n in zip(sides, self.image_shape, strict=False))
        if not fits or any(side % 2 == 0 for side in sides) or not self.kernel.any():
            raise ValueError(
                "`kernel` must have odd sides that are not longer than the image, and "
                "a number other than 0. Pad it with zeros, or crop it. "
                f"Received: kernel of shape {sides}, image_shape={self.image_shape}."
            )

    def call(self, images: Any) -> Any:
        return self._correlate(images, self.kernel[::-1, ::-1])

    def adjoint(self, measurements: Any) -> Any:
        return self._correlate(measurements, self.kernel)

    def inverse(self, images: Any, mu: Any) -> Any:
        return self.apply_inverse(images, self.inverse_factor(mu))

    def inverse_factor(self, mu: Any) -> Any:
        """Returns 1 / (|k|^2 + mu) of each frequency, `(height, width)`."""
        if self.boundary == "zero":
            return super().inverse(None, mu)  # Raises an error.
        power = np.abs(np.fft.fft2(self.kernel, self.image_shape[:2])) ** 2
        return inverse_spectrum(power, mu)

    def apply_inverse(self, images: Any, factor: Any) -> Any:
        spectrum = ops.cast(factor, images.dtype)
        return apply_spectrum(images, ops.zeros_like(images), spectrum)[0]

    def norm_bound(self) -> float:
        size: Any = np.array(self.image_shape[:2])
        if self.boundary == "zero":
            # It is a circular blur of a larger image, between padding and cropping.
            size = size + self.kernel.shape - 1
        return float(np.abs(np.fft.fft2(self.kernel, size)).max())

    def _correlate(self, images: Any, kernel: np.ndarray) -> Any:
        rows, columns = (side // 2 for side in kernel.shape)
        if self.boundary == "zero":
            sides = ((0, 0), (rows, rows), (columns, columns), (0, 0))
            images = ops.pad(images, sides)
        else:
            for axis, margin in ((1, rows), (2, columns)):
                if margin:
                    first, last = (
                        ops.take(images, np.arange(*part), axis=axis)
                        for part in (
                            (0, margin),
                            (images.shape[axis] - margin, images.shape[axis]),
                        )
                    )
                    images = ops.concatenate([last, images, first], axis=axis)
        kernel = np.repeat(kernel[:, :, None, None], self.image_shape[2], axis=2)
        kernel = ops.cast(kernel, images.dtype)
        return ops.depthwise_conv(images, kernel, data_format="channels_last")

    def get_config(self) -> dict[str, Any]:
        config = {"kernel": self.kernel.tolist(), "boundary": self.boundary}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="deq_keras")
class Inpainting(ProjectionOperator):
    """Sets missing pixels of an image to zero: A z = mask z.

    The measurements have the shape of the image.

    Args:
        mask: Array `(height, width)` or `(height, width, channels)`, 1 at known pixels
            and 0 at missing pixels.
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> mask = np.random.default_rng(0).uniform(size=(8, 8)) < 0.5
    >>> operator = deq_keras.layers.Inpainting(mask, (8, 8, 3))
    >>> tuple(operator(np.ones((2, 8, 8, 3), "float32")).shape)
    (2, 8, 8, 3)
    """

    def __init__(
        self, mask: Any, image_shape: tuple[int, int, int], **kwargs: Any
    ) -> None:
        super().__init__(image_shape, **kwargs)
        self.mask = check_mask("mask", mask, (2, 3))
        if self.mask.shape not in (self.image_shape, self.image_shape[:2]):
            raise ValueError(
                "`mask` must have the shape (height, width) or (height, width, "
                f"channels) of the image. Received: mask of shape {self.mask.shape}, "
                f"image_shape={self.image_shape}."
            )

    def call(self, images: Any) -> Any:
        mask = self.mask if self.mask.ndim == 3 else self.mask[..., None]
        return images * ops.cast(mask, images.dtype)

    adjoint = call
    normal = call

    def norm_bound(self) -> float:
        return 1.0

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mask": self.mask.tolist()}


@keras.saving.register_keras_serializable(package="deq_keras")
class Downsampling(ProjectionOperator):
    """Averages blocks of `factor` x `factor` pixels, for super-resolution.

    Args:
        factor: Positive integer. Side of a block. It must divide height and width.
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Output shape:
        `(batch, height / factor, width / factor, channels)`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> operator = deq_keras.layers.Downsampling(2, (8, 8, 1))
    >>> tuple(operator(np.ones((3, 8, 8, 1), "float32")).shape)
    (3, 4, 4, 1)
    >>> operator.norm
    0.5
    """

    def __init__(
        self, factor: int, image_shape: tuple[int, int, int], **kwargs: Any
    ) -> None:
        super().__init__(image_shape, **kwargs)
        self.factor = check_count("factor", factor)
        if any(side % self.factor for side in self.image_shape[:2]):
            raise ValueError(
                "`factor` must divide height and width. Crop the images. Received: "
                f"factor={self.factor}, image_shape={self.image_shape}."
            )

    def call(self, images: Any) -> Any:
        return ops.average_pool(images, self.factor, data_format="channels_last")

    def adjoint(self, measurements: Any) -> Any:
        # LiteRT does not support `ops.repeat` for batches of unknown size.
        for axis, size in zip((1, 2), self.image_shape, strict=False):
            blocks = np.arange(size, dtype="int32") // self.factor
            measurements = ops.take(measurements, blocks, axis=axis)
        return measurements / self.factor**2

    def norm_bound(self) -> float:
        return 1 / self.factor

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}
