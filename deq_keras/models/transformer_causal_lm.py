"""What the language models have in common."""

import keras
from keras_hub.models import CausalLM

from deq_keras.layers import AdaptiveSoftmax
from deq_keras.models.restored_compilation import RestoredCompilation
from deq_keras.models.segment_reading import SegmentReading
from deq_keras.models.transformer_backbone import padding_mask_of, token_ids_of


class TransformerCausalLM(SegmentReading, RestoredCompilation, CausalLM):
    """A `TransformerBackbone` with an `AdaptiveSoftmax` on its hidden states.

    The arguments are described in `DEQTransformerCausalLM`.
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
        if padding_mask_of(inputs) is None:
            return super().call(token_ids_of(inputs), training=training, mask=mask)
        return self.softmax(self.backbone(inputs, training=training))

    @property
    def segment_layer(self):
        """The layer that remembers the segments before."""
        return self.backbone.segment_layer

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
