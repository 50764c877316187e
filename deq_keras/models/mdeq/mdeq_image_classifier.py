"""The image classifier on a multiscale equilibrium."""

from typing import Any

import keras
from keras_hub.models import ImageClassifier, Task

from deq_keras.core.serialization import Config
from deq_keras.layers import MultiscaleClassificationHead
from deq_keras.models.kerashub import RestorableTask, head_dtype_config
from deq_keras.models.mdeq.mdeq_backbone import MDEQBackbone
from deq_keras.models.mdeq.mdeq_preprocessor import (
    MDEQImageClassifierPreprocessor,
)
from deq_keras.models.mdeq.mdeq_presets import CLASSIFIERS


@keras.saving.register_keras_serializable(package="deq_keras")
class MDEQImageClassifier(RestorableTask, ImageClassifier):
    """Image classifier on a multiscale equilibrium.

    An `MDEQBackbone` with a `MultiscaleClassificationHead` on its feature maps. Outputs
    are logits unless an activation is given.

    Args:
        backbone: `MDEQBackbone`.
        num_classes: Positive integer. Number of classes.
        head_filters: Tuple of positive integers, one for each scale; see
            `MultiscaleClassificationHead`.
        final_filters: Positive integer. Number of channels that are pooled.
        preprocessor: `MDEQImageClassifierPreprocessor`, or `None` for images that are
            normalized already. Defaults to `None`.
        activation: Activation of the outputs. Defaults to `None`.
        head_dtype: Dtype or policy of the head. Defaults to `None`, the backbone's.
        **kwargs: `name` and `trainable`.

    Call arguments:
        inputs: Floating-point tensor of normalized images.

    Input shape:
        `(batch, height, width, channels)`; see `MDEQBackbone`.

    Output shape:
        `(batch, num_classes)`.

    Example:

    >>> model = MDEQImageClassifier(
    ...     MDEQBackbone(filters=(8, 16), expansion=2, num_downsamplings=0),
    ...     num_classes=10, head_filters=(2, 4), final_filters=16)
    >>> tuple(model(np.ones((2, 16, 16, 3), "float32")).shape)
    (2, 10)

    Reference:
        [Bai, Koltun and Kolter, 2020](https://arxiv.org/abs/2006.08656).
    """

    backbone_cls = MDEQBackbone
    preprocessor_cls = MDEQImageClassifierPreprocessor
    presets = CLASSIFIERS

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        head_filters: tuple[int, ...],
        final_filters: int,
        preprocessor: keras.layers.Layer | None = None,
        activation: Any = None,
        head_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        head = MultiscaleClassificationHead(
            num_classes,
            head_filters,
            final_filters,
            activation=activation,
            dtype=head_dtype or backbone.dtype_policy,
            name="head",
        )

        # === Functional Model ===
        self.activation = head.activation  # For `compile`.
        super().__init__(backbone, head, preprocessor, **kwargs)

        # === Config ===
        self.head = head
        self.num_classes = head.num_classes
        self.head_filters = head.filters
        self.final_filters = head.final_filters
        self.head_dtype = head_dtype and head.dtype_policy

    def get_config(self) -> Config:
        return {
            **Task.get_config(self),
            "num_classes": self.num_classes,
            "head_filters": list(self.head_filters),
            "final_filters": self.final_filters,
            "activation": keras.activations.serialize(self.activation),
            "head_dtype": head_dtype_config(self.head, self.head_dtype),
        }
