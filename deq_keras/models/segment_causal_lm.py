"""What the language models that read texts segment by segment have in common."""

import keras
from keras_hub.models import CausalLM

from deq_keras.layers import AdaptiveSoftmax
from deq_keras.models.restored_compilation import RestoredCompilation
from deq_keras.models.segment_backbone import token_ids_of


class SegmentCausalLM(RestoredCompilation, CausalLM):
    """A `SegmentBackbone` with an `AdaptiveSoftmax` on its hidden states.

    Every epoch, evaluation and prediction begins with an empty memory. The arguments
    are described in `DEQTransformerCausalLM`.
    """

    def __init__(
        self,
        backbone,
        preprocessor=None,
        tie_weights=True,
        tie_projections=None,
        compile=True,
        name=None,
    ):
        softmax = AdaptiveSoftmax(
            backbone.token_embedding,
            tie_weights=tie_weights,
            tie_projections=tie_projections,
            dtype=backbone.dtype_policy,
            name="softmax",
        )
        inputs = backbone.input
        self.backbone = backbone
        self.preprocessor = preprocessor
        super().__init__(
            inputs=inputs, outputs=softmax(backbone(inputs)), compile=compile, name=name
        )
        self.softmax = softmax

    def call(self, inputs, training=None, mask=None):
        return super().call(token_ids_of(inputs), training=training, mask=mask)

    def reset_memory(self):
        """Forgets the segments before: the next call begins new texts."""
        self.backbone.reset_memory()

    def reset_metrics(self):
        """Resets metrics and memory. Keras calls this at the start of every epoch and
        evaluation."""
        super().reset_metrics()
        self.reset_memory()

    def predict(self, *args, **kwargs):
        """See `keras.Model.predict`. Begins with an empty memory."""
        self.reset_memory()
        return super().predict(*args, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {
            **config,
            "sampler": keras.saving.serialize_keras_object(self.sampler),
        }

    def get_config(self):
        config = {
            "tie_weights": self.softmax.tie_weights,
            "tie_projections": list(self.softmax.tie_projections),
        }
        return {**super().get_config(), **config}
