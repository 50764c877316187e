"""The backbone that language models share."""

import keras
from keras import ops
from keras_hub.models import Backbone

from deq_keras.layers import VariationalDropout
from deq_keras.models.language.segments import SegmentReading


class LanguageBackbone(SegmentReading, Backbone):
    """An embedding and a layer with the depth of the model, with dropout after each.

    A subclass creates the layers from its arguments and passes them on. The fields of
    `arguments` become attributes of the backbone and entries of its config.

    Args:
        arguments: `TransformerArguments`, `StackArguments` or `TrellisArguments`.
        token_embedding: `AdaptiveEmbedding`.
        segment_layer: Layer from embedded tokens to hidden states that remembers
            earlier segments, such as `SegmentMemory` around a `DEQ`, or a
            `TransformerStack`.
    """

    # See `VariationalDropout`: drops the same channels at all positions of a sample.
    noise_shape = (None, 1, None)

    def __init__(self, arguments, token_embedding, segment_layer):
        # === Layers ===
        after_embedding, after_depth = (
            VariationalDropout(
                rate,
                noise_shape=self.noise_shape,
                dtype=arguments.dtype,
                name=f"{place}_dropout",
            )
            for place, rate in zip(("embedding", "output"), arguments.dropout_rates)
        )

        # === Functional Model ===
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        hidden = _last(segment_layer(after_embedding(token_embedding(token_ids))))
        super().__init__(
            inputs=token_ids,
            outputs=after_depth(hidden),
            dtype=arguments.dtype,
            name=arguments.name,
            trainable=arguments.trainable,
        )

        # === Config ===
        self.segment_layer = segment_layer
        self.token_embedding = token_embedding
        self._arguments = arguments
        for name, value in arguments.fields().items():
            setattr(self, name, value)
        # These two layers replace the rates of the same name.
        self.embedding_dropout, self.output_dropout = after_embedding, after_depth

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

    def get_config(self):
        return {
            **super().get_config(),
            **self._arguments.fields(),
            "cutoffs": list(self.cutoffs),
            "memory_length": self.memory_length,
        }


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
