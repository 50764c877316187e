"""The backbone that language models share."""

from keras import ops
from keras_hub.models import Backbone

from deq_keras.models.kerashub import PackagedBackbone
from deq_keras.models.language.segments import SegmentReading


class LanguageBackbone(SegmentReading, PackagedBackbone, Backbone):
    """An embedding and a layer with the depth of the model, with dropout after each.

    A subclass creates the layers and the functional model from `token_ids`. It sets the
    attributes `token_embedding`, `embedding_dropout`, `segment_layer` and
    `output_dropout`, with which calls with a padding mask run.
    """

    def call(self, inputs, training=None, mask=None):
        token_ids, padding_mask = token_ids_of(inputs), padding_mask_of(inputs)
        if padding_mask is None:
            return super().call(token_ids, training=training, mask=mask)
        embedded = self.embedding_dropout(
            self.token_embedding(token_ids), training=training
        )
        hidden = self.segment_layer(embedded, mask=padding_mask, training=training)
        return self.output_dropout(_last(hidden), training=training)

    @property
    def memory_length(self):
        """Number of remembered positions. Compile the model after you set it."""
        return self.segment_layer.length

    @memory_length.setter
    def memory_length(self, length):
        self.segment_layer.length = length


def token_ids_of(inputs):
    """Returns the token ids of plain ids or of the outputs of a preprocessor."""
    return inputs["token_ids"] if isinstance(inputs, dict) else inputs


def padding_mask_of(inputs):
    """Returns the Boolean padding mask of the outputs of a preprocessor, or `None`."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")


def _last(hidden):
    """Returns the hidden states of the last layer, which come first in a list."""
    return hidden[0] if isinstance(hidden, list) else hidden
