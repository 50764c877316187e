"""Classification of every position of a problem by a reasoner."""

from typing import Any

import keras
from keras_hub.models import Task

from deq_keras.core.checks import check_count
from deq_keras.core.serialization import Config
from deq_keras.core.structure import wide_dtype
from deq_keras.metrics import ExactMatch
from deq_keras.models.kerashub import RestorableTask, head_dtype_config
from deq_keras.models.reasoner.reasoner_backbone import ReasonerBackbone
from deq_keras.models.reasoner.reasoner_presets import PRESETS


@keras.saving.register_keras_serializable(package="deq_keras")
class ReasonerTagger(RestorableTask, Task):
    """Classifies every position of a problem.

    A `ReasonerBackbone` with a dense layer on the state of each position. Outputs are
    logits. Compiled by default with Adam (learning rate 1e-3, gradients clipped to a
    global norm of one), the cross-entropy of integer labels and the weighted metric
    `deq_keras.metrics.ExactMatch`: positions of sample weight zero do not count.

    Args:
        backbone: `ReasonerBackbone`.
        num_classes: Positive integer.
        preprocessor: Optional layer for raw problems. Defaults to `None`.
        head_dtype: Dtype or policy of the dense layer. Defaults to `None`, float32 or,
            for a float64 backbone, float64.
        **kwargs: `name`, `trainable` and `compile`.

    Call arguments:
        inputs: Problems, as `ReasonerBackbone` takes them.

    Input shape:
        `(batch, *input_size)`; see `ReasonerBackbone`.

    Output shape:
        `(batch, *positions, num_classes)`, float32 or, for a float64 backbone, float64.

    Example:

    >>> model = ReasonerTagger.from_preset("mazes")
    >>> model.output_shape
    (None, None, None, 2)
    """

    backbone_cls = ReasonerBackbone
    presets = PRESETS

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        preprocessor: keras.layers.Layer | None = None,
        head_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        head = keras.layers.Dense(
            check_count("num_classes", num_classes),
            dtype=head_dtype or wide_dtype(backbone.deq.compute_dtype),
            name="head",
        )

        # === Functional Model ===
        super().__init__(backbone, head, preprocessor, **kwargs)

        # === Config ===
        self.head = head
        self.num_classes = head.units
        self.head_dtype = head_dtype and head.dtype_policy

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        # The functional model does not take a padding mask.
        return self.head(self.backbone(inputs, training=training, mask=mask))

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        *,
        weighted_metrics: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """See `keras.Model.compile`; `"auto"` is the default of the class."""
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=1.0)
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if weighted_metrics == "auto":
            weighted_metrics = [ExactMatch()]
        super().compile(
            optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs
        )

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "head_dtype": head_dtype_config(self.head, self.head_dtype),
        }
