"""What the language models have in common."""

import keras
from keras_hub.models import CausalLM

from deq_keras.models.language_backbone import padding_mask_of, token_ids_of
from deq_keras.models.restored_compilation import RestoredCompilation
from deq_keras.models.segment_reading import SegmentReading


class LanguageCausalLM(SegmentReading, RestoredCompilation, CausalLM):
    """A `LanguageBackbone` with log-probabilities of its hidden states.

    Args:
        backbone: `LanguageBackbone`.
        softmax: Layer from hidden states to log-probabilities, or with targets as its
            second argument to their losses, such as an `AdaptiveSoftmax`.
        preprocessor: `keras_hub.models.CausalLMPreprocessor` or `None`.
        compile: Boolean. Whether to compile with KerasHub's defaults.
        name: String or `None`.
    """

    def __init__(self, backbone, softmax, preprocessor, compile, name):
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

    def token_losses(self, token_ids, targets):
        """Returns the symbolic losses of the targets, `(batch, length)`.

        Args:
            token_ids: Symbolic integer tensor `(batch, length)`.
            targets: Symbolic integer tensor `(batch, length)`.
        """
        return self.softmax(self.backbone(token_ids), targets)

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
