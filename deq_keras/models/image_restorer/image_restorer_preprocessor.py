"""Converts raw measurements and images to inputs and targets of image restorers."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.models import Preprocessor

from deq_keras.core.checks import check_counts
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import LinearOperator
from deq_keras.models.image_restorer.image_restorer_backbone import (
    ImageRestorerBackbone,
)
from deq_keras.models.kerashub import PackagedPreprocessor


@keras.saving.register_keras_serializable(package="deq_keras")
class ImageRestorerPreprocessor(PackagedPreprocessor, Preprocessor):
    """Converts raw measurements and images to float32, and checks them.

    Unsigned integers are divided by the largest number of their dtype, so that images
    have values in [0, 1]. Floats remain as they are.

    Args:
        measurement_shape: Tuple of positive integers. Shape of the measurements of one
            image.
        image_shape: Tuple of positive integers, `(height, width, channels)`.
        measurement_range: Pair of floats, the smallest and the largest measurement.
            Defaults to `(-1.0, 2.0)`, for images in [0, 1] with noise. For measurements
            that are not images, such as the sums of a `RadonTransform`, pass a range
            that fits, such as `(-10.0, 100.0)`.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name`.

    Call arguments:
        x: Measurements, `(batch, *measurement_shape)` or of one image; or a dict of
            them as `"measurements"` and a `"noise_level"`.
        y: Optional images, `(batch, *image_shape)` or one. Defaults to `None`.
        sample_weight: Optional weights of the images. Defaults to `None`.

    Raises:
        ValueError: If an array has another shape, is complex or of signed integers, or
            its values are not finite numbers in the range. A noise level is at most
            half of the width of the range, the largest standard deviation there. In a
            `tf.data` pipeline, values outside the range raise
            `tf.errors.InvalidArgumentError`.

    Example:

    >>> operator = deq_keras.layers.Downsampling(2, (8, 8, 1))
    >>> preprocessor = ImageRestorerPreprocessor.for_operator(operator)
    >>> float(preprocessor(np.full((4, 4, 1), 51, "uint8"))[0, 0, 0])
    0.20000000298023224
    """

    backbone_cls = ImageRestorerBackbone

    def __init__(
        self,
        measurement_shape: tuple[int, ...],
        image_shape: tuple[int, ...],
        measurement_range: tuple[float, float] = (-1.0, 2.0),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.measurement_shape = check_counts("measurement_shape", measurement_shape)
        self.image_shape = check_counts("image_shape", image_shape)
        low, high = measurement_range
        if not -np.inf < low < high < np.inf:
            raise ValueError(
                "`measurement_range` must be two finite numbers in ascending order. "
                f"Received: measurement_range={measurement_range!r}."
            )
        self.measurement_range = float(low), float(high)

    @classmethod
    def for_operator(cls, operator: LinearOperator, **kwargs: Any) -> Any:
        """Returns the preprocessor of the measurements of a `LinearOperator`.

        Args:
            operator: `deq_keras.layers.LinearOperator`.
            **kwargs: Other arguments, such as `measurement_range`.
        """
        return cls(operator.measurement_shape, operator.image_shape, **kwargs)

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if isinstance(x, dict) and set(x) != {"measurements", "noise_level"}:
            raise ValueError(
                f"'{self.name}' expects a tensor of measurements, or a dict of "
                "`measurements` and `noise_level`. Received: a dict with the keys "
                f"{sorted(x)}."
            )
        measured = x["measurements"] if isinstance(x, dict) else x
        measured = _to_float32(
            "measurements", measured, self.measurement_shape, self.measurement_range
        )
        if isinstance(x, dict):
            low, high = self.measurement_range
            level = tf.cast(x["noise_level"], "float32")
            _check_values(
                "noise levels",
                level,
                (0.0, (high - low) / 2),
                "They are standard deviations in the unit of floating-point "
                "measurements: divide levels of uint8 images by 255.",
            )
            measured = {"measurements": measured, "noise_level": level}
        if y is not None:
            y = _to_float32("images", y, self.image_shape, (0.0, 1.0))
        return keras.utils.pack_x_y_sample_weight(measured, y, sample_weight)

    def get_config(self) -> Config:
        arguments = arguments_of(self, ImageRestorerPreprocessor)
        return {**super().get_config(), **arguments}


def _to_float32(name: str, array: Any, shape: Any, limits: Any) -> Any:
    """Returns an array as a float32 tensor of values within limits."""
    tensor = tf.convert_to_tensor(array)
    dtype = tensor.dtype
    rank = len(shape)
    is_batch = tensor.shape.rank in (rank, rank + 1)
    if not is_batch or not tensor.shape[-rank:].is_compatible_with(shape):
        raise ValueError(
            f"Expected {name} of shape {shape} or (batch, {str(shape)[1:]}, as the "
            "operator requires. Crop or resize the images, or create a model for their "
            f"size. Received: {name} of shape {tuple(tensor.shape)}."
        )
    if not (dtype.is_floating or (dtype.is_integer and dtype.is_unsigned)):
        raise ValueError(
            f"Expected {name} as floats or unsigned integers. Scale signed integers, "
            "such as the values of a CT scan, to floats. Pass real and imaginary part "
            "of complex numbers as two channels. "
            f"Received: {name} of dtype {dtype.name}."
        )
    values = tf.cast(tensor, "float32")
    if dtype.is_integer:
        return values / dtype.max
    advice = "Divide values from 0 to 255 by 255, or pass them as uint8."
    _check_values(name, values, limits, advice)
    return values


def _check_values(name: str, values: Any, limits: Any, advice: str) -> None:
    """Raises an error if values are not finite or outside limits."""
    low, high = limits
    is_valid = tf.reduce_all((values >= low) & (values <= high))  # False for NaN.
    message = f"Expected {name} with finite values from {low:g} to {high:g}. {advice}"
    if tf.executing_eagerly() and not is_valid:
        raise ValueError(
            f"{message} Received: {name} from {np.min(values):g} to {np.max(values):g}."
        )
    extremes = [tf.reduce_min(values), tf.reduce_max(values)]
    tf.debugging.Assert(is_valid, [message, "Received:", *extremes])
