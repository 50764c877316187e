"""The image restorer as a task that trains."""

from typing import Any

import keras
from keras_hub.models import Task

from deq_keras.core.structure import wide_dtype
from deq_keras.layers import LinearOperator
from deq_keras.metrics import PeakSignalToNoiseRatio
from deq_keras.models.image_restorer.image_restorer_backbone import (
    ImageRestorerBackbone,
)
from deq_keras.models.image_restorer.image_restorer_preprocessor import (
    ImageRestorerPreprocessor,
)
from deq_keras.models.kerashub import RestorableTask


@keras.saving.register_keras_serializable(package="deq_keras")
class ImageRestorer(RestorableTask, Task):
    """Reconstructs images from measurements.

    An `ImageRestorerBackbone` whose outputs are float32. Compiled by default with Adam
    (learning rate 1e-3, gradients clipped to a global norm of one), the mean squared
    error and the metric `deq_keras.metrics.PeakSignalToNoiseRatio`.

    Args:
        backbone: `ImageRestorerBackbone`.
        preprocessor: `ImageRestorerPreprocessor` for raw measurements and images.
            Defaults to `None`, measurements and images in floating-point.
        **kwargs: `name`, `trainable` and `compile`.

    Call arguments:
        inputs: Measurements, as `ImageRestorerBackbone` takes them.

    Input shape:
        See `ImageRestorerBackbone`.

    Output shape:
        `(batch, height, width, channels)`, float32 or, for a float64 backbone, float64.

    Example:

    >>> operator = deq_keras.layers.Blur(np.ones((3, 3)) / 9, (8, 8, 1))
    >>> cell = deq_keras.layers.HalfQuadraticCell(
    ...     operator, deq_keras.layers.ImageDenoiser(filters=8, num_layers=3))
    >>> restorer = ImageRestorer(
    ...     ImageRestorerBackbone(cell),
    ...     ImageRestorerPreprocessor.for_operator(operator))
    >>> blurred = np.full((2, 8, 8, 1), 100, "uint8")
    >>> restorer.predict(blurred, verbose=0).shape
    (2, 8, 8, 1)
    """

    backbone_cls = ImageRestorerBackbone
    preprocessor_cls = ImageRestorerPreprocessor
    presets = ImageRestorerBackbone.presets

    def __init__(
        self,
        backbone: keras.Model,
        preprocessor: keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        wide = wide_dtype(backbone.deq.compute_dtype)
        head = keras.layers.Activation("linear", dtype=wide, name="image")

        # === Functional Model ===
        super().__init__(backbone, head, preprocessor, **kwargs)

    def with_operator(self, operator: LinearOperator) -> Any:
        """See `ImageRestorerBackbone.with_operator`. Keeps the range of the
        preprocessor."""
        preprocessor = self.preprocessor
        if preprocessor is not None:
            preprocessor = type(preprocessor).for_operator(
                operator, measurement_range=preprocessor.measurement_range
            )
        return type(self)(self.backbone.with_operator(operator), preprocessor)

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        *,
        metrics: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """See `keras.Model.compile`; `"auto"` is the default of the class."""
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
        if loss == "auto":
            loss = keras.losses.MeanSquaredError()
        if metrics == "auto":
            metrics = [PeakSignalToNoiseRatio()]
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)
