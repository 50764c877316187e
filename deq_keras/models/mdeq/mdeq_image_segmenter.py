"""Segmentation of images on a multiscale equilibrium."""

from typing import Any

import keras
from keras_hub.models import ImageSegmenter

from deq_keras.core.serialization import Config
from deq_keras.layers import MultiscaleSegmentationHead
from deq_keras.models.kerashub import RestorableTask, head_dtype_config
from deq_keras.models.mdeq.mdeq_backbone import MDEQBackbone
from deq_keras.models.mdeq.mdeq_preprocessor import (
    MDEQImageSegmenterPreprocessor,
)
from deq_keras.models.mdeq.mdeq_presets import SEGMENTERS


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageSegmenter(RestorableTask, ImageSegmenter):
    """Semantic segmentation on a multiscale equilibrium.

    An `MDEQBackbone` with a `MultiscaleSegmentationHead` on its feature maps. Outputs
    are logits of every pixel unless an activation is given.

    Args:
        backbone: `MDEQBackbone`.
        num_classes: Positive integer. Number of classes.
        kernel_size: Positive odd integer. Side of the window of the last convolution.
            Defaults to `1`.
        preprocessor: `MDEQImageSegmenterPreprocessor`, or `None` for images that are
            normalized already. Defaults to `None`.
        activation: Activation of the outputs. Defaults to `None`.
        head_dtype: Dtype or policy of the head. Defaults to `None`, the backbone's.
        **kwargs: `name` and `trainable`.

    Call arguments:
        inputs: Floating-point tensor of normalized images.

    Input shape:
        `(batch, height, width, channels)`; see `MDEQBackbone`.

    Output shape:
        `(batch, height, width, num_classes)`.

    Example:

    >>> model = MDEQImageSegmenter(
    ...     MDEQBackbone(filters=(8, 16), expansion=2, num_downsamplings=1),
    ...     num_classes=5)
    >>> tuple(model(np.ones((1, 16, 32, 3), "float32")).shape)
    (1, 16, 32, 5)

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    backbone_cls = MDEQBackbone
    preprocessor_cls = MDEQImageSegmenterPreprocessor
    presets = SEGMENTERS

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        kernel_size: int = 1,
        preprocessor: keras.layers.Layer | None = None,
        activation: Any = None,
        head_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        head = MultiscaleSegmentationHead(
            num_classes,
            scale=2**backbone.num_downsamplings,
            kernel_size=kernel_size,
            activation=activation,
            momentum=backbone.batch_norm_momentum,
            dtype=head_dtype or backbone.dtype_policy,
            name="head",
        )

        # === Functional Model ===
        self.activation = head.activation  # For `compile`.
        super().__init__(backbone, head, preprocessor, **kwargs)

        # === Config ===
        self.head = head
        self.num_classes = head.num_classes
        self.kernel_size = head.kernel_size
        self.head_dtype = head_dtype and head.dtype_policy

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        *,
        metrics: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """See `keras_hub.models.ImageSegmenter.compile`; labels are integers here.

        The loss ignores pixels with the label 255, as in common data sets.
        """
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=self.activation != keras.activations.softmax,
                ignore_class=255,
            )
        if metrics == "auto":
            num_classes = self.outputs[0].shape[-1]
            metrics = [
                keras.metrics.MeanIoU(
                    num_classes,
                    name="mean_io_u",  # Keras would number a second compilation.
                    ignore_class=255,
                    sparse_y_pred=False,
                )
            ]
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "kernel_size": self.kernel_size,
            "activation": keras.activations.serialize(self.activation),
            "head_dtype": head_dtype_config(self.head, self.head_dtype),
        }
