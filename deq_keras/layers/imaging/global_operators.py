"""Operators whose measurements depend on all pixels: MRI, CT, any matrix."""

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from deq_keras.core.checks import check_count
from deq_keras.layers.imaging.fourier import (
    apply_spectrum,
    fourier_transform,
    inverse_spectrum,
)
from deq_keras.layers.imaging.linear_operator import (
    LinearOperator,
    check_array,
    check_mask,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class FourierSampling(LinearOperator):
    """Measures some frequencies of an image, as magnetic resonance imaging does.

    ```
    A z = mask F z,   F: orthonormal discrete Fourier transform
    ```

    The measurements have two channels, real and imaginary part. They are zero at
    frequencies that are not sampled. Frequency 0 is at index (0, 0), as in
    `np.fft.fft2(image, norm="ortho")`; for a centered mask, use `np.fft.ifftshift`.

    Args:
        mask: Array `(height, width)`, 1 at sampled frequencies and 0 elsewhere.
        image_shape: Tuple `(height, width, channels)`. One channel is a real image;
            two are the real and imaginary part of a complex image.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Output shape:
        `(batch, height, width, 2)`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> mask = np.random.default_rng(0).uniform(size=(8, 8)) < 0.5
    >>> operator = deq_keras.layers.FourierSampling(mask, (8, 8, 1))
    >>> tuple(operator(np.ones((2, 8, 8, 1), "float32")).shape)
    (2, 8, 8, 2)
    """

    def __init__(
        self, mask: Any, image_shape: tuple[int, int, int], **kwargs: Any
    ) -> None:
        super().__init__(image_shape, **kwargs)
        self.mask = check_mask("mask", mask, 2)
        *size, channels = self.image_shape
        if self.mask.shape != tuple(size) or channels > 2:
            raise ValueError(
                "`mask` must have height and width of the image, and the image one "
                "channel (real) or two channels (real and imaginary part). Received: "
                f"mask of shape {self.mask.shape}, image_shape={self.image_shape}."
            )
        # A^T A multiplies frequencies by this. A real image has the same information
        # at opposite frequencies.
        self._power = self.mask
        if channels == 1:
            opposite = np.roll(self.mask[::-1, ::-1], 1, (0, 1))
            self._power = (self.mask + opposite) / 2

    def call(self, images: Any) -> Any:
        real, imaginary = self._parts(images)
        mask = ops.cast(self.mask[..., None], images.dtype)
        parts = [mask * part for part in fourier_transform(real, imaginary)]
        return ops.concatenate(parts, axis=-1)

    def adjoint(self, measurements: Any) -> Any:
        mask = ops.cast(self.mask[..., None], measurements.dtype)
        real, imaginary = ops.split(mask * measurements, 2, axis=-1)
        return self._images(*fourier_transform(real, imaginary, is_inverse=True))

    def normal(self, images: Any) -> Any:
        spectrum = ops.cast(self._power, images.dtype)
        return self._images(*apply_spectrum(*self._parts(images), spectrum))

    def inverse(self, images: Any, mu: Any) -> Any:
        return self.apply_inverse(images, self.inverse_factor(mu))

    def inverse_factor(self, mu: Any) -> Any:
        """Returns 1 / (|mask|^2 + mu) of each frequency, `(height, width)`."""
        return inverse_spectrum(self._power, mu)

    def apply_inverse(self, images: Any, factor: Any) -> Any:
        spectrum = ops.cast(factor, images.dtype)
        return self._images(*apply_spectrum(*self._parts(images), spectrum))

    def norm_bound(self) -> float:
        return math.sqrt(self._power.max())

    def _parts(self, images: Any) -> tuple[Any, Any]:
        if self.image_shape[2] == 1:
            return images, ops.zeros_like(images)
        real, imaginary = ops.split(images, 2, axis=-1)
        return real, imaginary

    def _images(self, real: Any, imaginary: Any) -> Any:
        is_real = self.image_shape[2] == 1
        return real if is_real else ops.concatenate([real, imaginary], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mask": self.mask.tolist()}


@keras.saving.register_keras_serializable(package="deq_keras")
class RadonTransform(LinearOperator):
    """Sums an image along parallel rays from several angles, as in CT scanners.

    The angles are `k pi / num_angles` for k = 0, 1, ... A point in column x and row y,
    counted in pixels from the center of the image, lies on the ray

    ```
    t = x cos(angle) + y sin(angle)
    ```

    Pixels are squares of constant brightness. A detector bin at t is one pixel wide and
    measures the mean of the line integrals from t - 1/2 to t + 1/2: the sum of all
    pixels, weighted by the area that they share with this strip. Bins cover the whole
    image, so that each angle sums to the sum of the image.

    `call` and `adjoint` gather numbers by constant tables with about
    `2.3 num_angles height width` entries each: choose a modest number of angles and
    pixels.

    Args:
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        num_angles: Positive integer.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Output shape:
        `(batch, num_angles, num_bins, channels)`, the sinogram. `num_bins` is odd, and
        the middle bin measures the center of the image.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> operator = deq_keras.layers.RadonTransform((8, 8, 1), num_angles=6)
    >>> sinogram = operator(np.ones((2, 8, 8, 1), "float32"))
    >>> tuple(sinogram.shape)
    (2, 6, 13, 1)
    >>> bool(np.allclose(keras.ops.sum(sinogram, axis=2), 64))
    True
    """

    def __init__(
        self, image_shape: tuple[int, int, int], num_angles: int, **kwargs: Any
    ) -> None:
        super().__init__(image_shape, **kwargs)
        self.num_angles = check_count("num_angles", num_angles)
        height, width, _ = self.image_shape
        # The middle bin and `center` bins on each side reach the corners of the image.
        center = math.ceil(math.hypot(height, width) / 2 - 0.5)
        self.num_bins = 2 * center + 1
        y, x = np.mgrid[:height, :width].reshape(2, -1)
        y, x = y - (height - 1) / 2, x - (width - 1) / 2
        index = np.arange(self.num_angles)[:, None]
        angles = np.pi * index / self.num_angles
        places = np.cos(angles) * x + np.sin(angles) * y + center  # (angles, pixels)
        # A pixel is at most sqrt(2) bins long, from any direction: it meets three bins.
        bins = np.rint(places).astype("int32") + np.arange(-1, 2)[:, None, None]
        areas = _overlap(bins - places, angles)  # (3, angles, pixels)
        meets = areas > 1e-9  # Less is rounding.
        rows = (bins + self.num_bins * index)[meets]
        pixels = np.broadcast_to(np.arange(height * width), areas.shape)[meets]
        areas, order = areas[meets], np.argsort(rows, kind="stable")
        rows, pixels, areas = rows[order], pixels[order], areas[order]
        # A ray through the center meets far more pixels than a ray through a corner:
        # padding all rows to the longest would double the table. Hence rows are sums of
        # short runs.
        num_rows = self.num_angles * self.num_bins
        runs, row_of_run = _runs(rows, num_rows)
        self._tables = [
            _table(runs, pixels, areas, len(row_of_run)),
            _table(row_of_run, np.arange(len(row_of_run)), 1.0, num_rows),
        ]
        self._adjoint_table = _table(pixels, rows, areas, height * width)

    def call(self, images: Any) -> Any:
        height, width, channels = self.image_shape
        sums = ops.reshape(images, (-1, height * width, channels))
        for table in self._tables:
            sums = _weighted_sums(sums, *table)
        return ops.reshape(sums, (-1, self.num_angles, self.num_bins, channels))

    def adjoint(self, measurements: Any) -> Any:
        size = self.num_angles * self.num_bins
        rows = ops.reshape(measurements, (-1, size, self.image_shape[2]))
        sums = _weighted_sums(rows, *self._adjoint_table)
        return ops.reshape(sums, (-1, *self.image_shape))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_angles": self.num_angles}


def _overlap(distances: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Returns the areas that unit squares share with strips of width one.

    Args:
        distances: Array `(..., angles, squares)`. From the center of a square to the
            middle of a strip.
        angles: Array `(angles, 1)`. Direction of the distance, to a side of the square.
    """
    # The projection of a square is a uniform distribution on a length `long`, blurred
    # by another one on a length `short`.
    sides = np.abs(np.cos(angles)), np.abs(np.sin(angles))
    long, short = np.maximum(*sides), np.minimum(*sides)
    short = np.where(short < 1e-12, 0, short)  # cos(pi / 2) is 6e-17.

    def integral(t: np.ndarray) -> np.ndarray:  # The distribution on `long`.
        inside = np.clip(t, -long / 2, long / 2) + long / 2
        return inside**2 / (2 * long) + np.maximum(t - long / 2, 0)

    def area(t: np.ndarray) -> np.ndarray:  # The part of a square before t.
        t = np.clip(t, -(long + short) / 2, (long + short) / 2)
        difference = integral(t + short / 2) - integral(t - short / 2)
        return np.where(short > 0, difference / np.where(short > 0, short, 1), t + 0.5)

    return area(distances + 0.5) - area(distances - 0.5)


def _runs(rows: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits the entries of each row into runs.

    Args:
        rows: Sorted integer array `(entries,)`. Row of each entry.
        num_rows: Integer.

    Returns:
        Arrays `(entries,)` and `(runs,)`: the run of each entry, the row of each run.
    """
    counts = np.bincount(rows, minlength=num_rows)
    # Shorter runs have less padding, but then their second sum is longer.
    length = math.ceil(math.sqrt(2 * counts.max()))
    num_runs = -(-counts // length)
    first = np.cumsum(num_runs) - num_runs
    runs = first[rows] + _places(rows) // length
    return runs, np.repeat(np.arange(num_rows), num_runs)


def _places(rows: np.ndarray) -> np.ndarray:
    """Returns how many earlier entries are in the same row, given sorted rows."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


def _table(
    rows: np.ndarray, columns: np.ndarray, weights: Any, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns columns and weights of a sparse matrix, padded with zeros.

    Args:
        rows: Integer array `(entries,)`.
        columns: Integer array `(entries,)`.
        weights: Array `(entries,)`, or a float for all entries.
        num_rows: Integer. Number of rows.

    Returns:
        Two arrays `(num_rows, entries of the longest row)`.
    """
    order = np.argsort(rows, kind="stable")
    index = rows[order], _places(rows[order])
    shape = num_rows, index[1].max() + 1
    table, table_weights = np.zeros(shape, "int32"), np.zeros(shape)
    table[index] = columns[order]
    table_weights[index] = np.broadcast_to(weights, order.shape)[order]
    return table, table_weights


def _weighted_sums(tensor: Any, indices: np.ndarray, weights: np.ndarray) -> Any:
    """Returns sum_k weights[i, k] tensor[:, indices[i, k]] for each row i.

    Args:
        tensor: Tensor `(batch, columns, channels)`.
        indices: Integer array `(rows, entries)`.
        weights: Array `(rows, entries)`.

    Returns:
        Tensor `(batch, rows, channels)`.
    """
    found = ops.take(tensor, indices.ravel(), axis=1)
    found = ops.reshape(found, (-1, *indices.shape, tensor.shape[-1]))  # (B, R, K, C)
    return ops.sum(found * ops.cast(weights[..., None], tensor.dtype), axis=2)


@keras.saving.register_keras_serializable(package="deq_keras")
class MatrixOperator(LinearOperator):
    """Multiplies the pixels of an image, as one vector, by a matrix.

    Use it for small images and unstructured operators. The config
    contains the matrix.

    Args:
        matrix: Array or sparse matrix of SciPy, `(measurements, height * width *
            channels)`. Its columns have the order of `image.reshape(-1)`. Products
            use a dense copy.
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Output shape:
        `(batch, measurements)`.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> matrix = np.random.default_rng(0).normal(size=(30, 64))
    >>> operator = deq_keras.layers.MatrixOperator(matrix, (8, 8, 1))
    >>> tuple(operator(np.ones((2, 8, 8, 1), "float32")).shape)
    (2, 30)
    """

    def __init__(
        self, matrix: Any, image_shape: tuple[int, int, int], **kwargs: Any
    ) -> None:
        super().__init__(image_shape, **kwargs)
        self.matrix = check_array("matrix", matrix, 2)
        if self.matrix.shape[1] != math.prod(self.image_shape) or not self.matrix.any():
            raise ValueError(
                "`matrix` must have one column for each number of an image, and a "
                "number other than 0. Received: matrix of shape "
                f"{self.matrix.shape}, image_shape={self.image_shape}, which are "
                f"{math.prod(self.image_shape)} numbers."
            )

    def call(self, images: Any) -> Any:
        rows = ops.reshape(images, (-1, self.matrix.shape[1]))
        return ops.matmul(rows, ops.cast(self.matrix.T, rows.dtype))

    def adjoint(self, measurements: Any) -> Any:
        rows = ops.matmul(measurements, ops.cast(self.matrix, measurements.dtype))
        return ops.reshape(rows, (-1, *self.image_shape))

    def inverse(self, images: Any, mu: Any) -> Any:
        values, vectors = (ops.cast(x, images.dtype) for x in self._eigenvectors)
        rows = ops.reshape(images, (-1, self.matrix.shape[1]))
        rows = ops.matmul(rows, vectors) / (values + mu)
        rows = ops.matmul(rows, ops.transpose(vectors))
        return ops.reshape(rows, (-1, *self.image_shape))

    @functools.cached_property
    def _eigenvectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues of A^T A, and eigenvectors in columns."""
        values, vectors = np.linalg.eigh(self.matrix.T @ self.matrix)
        return np.maximum(values, 0), vectors

    def norm_bound(self) -> float:
        return float(np.linalg.norm(self.matrix, 2))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "matrix": self.matrix.tolist()}
