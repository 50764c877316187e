"""What the backbones of language models have in common."""

import keras
from keras import ops
from keras_hub.models import Backbone

from deq_keras.layers import VariationalDropout
from deq_keras.models.segment_reading import SegmentReading


class LanguageBackbone(SegmentReading, Backbone):
    """Embedding, a layer that remembers the segments before, and dropout after both.

    `noise_shape` is that of the dropout: the same channels at all positions.

    Args:
        token_embedding: `AdaptiveEmbedding`.
        segment_layer: `MemoryLayer` of the embedded tokens.
        embedding_dropout: Float in `[0, 1)`. Rate at which channels of the embedding
            are dropped, each for all positions of a sample.
        output_dropout: Float in `[0, 1)`. The same of the hidden states.
        dtype: Dtype or policy of the layers. Defaults to `None`, Keras' own.
        name: String. Defaults to `None`.
        trainable: Boolean. Defaults to `True`.
    """

    noise_shape = (None, 1, None)

    def __init__(
        self,
        token_embedding,
        segment_layer,
        embedding_dropout,
        output_dropout,
        dtype=None,
        name=None,
        trainable=True,
    ):
        dropouts = [
            VariationalDropout(
                rate,
                noise_shape=self.noise_shape,
                dtype=dtype,
                name=f"{name}_dropout",
            )
            for name, rate in (
                ("embedding", embedding_dropout),
                ("output", output_dropout),
            )
        ]

        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        hidden = _last(segment_layer(dropouts[0](token_embedding(token_ids))))
        # Named one by one: a functional model drops arguments that it does not know.
        super().__init__(
            inputs=token_ids,
            outputs=dropouts[1](hidden),
            dtype=dtype,
            name=name,
            trainable=trainable,
        )

        self.token_embedding = token_embedding
        self.embedding_dropout, self.output_dropout = dropouts
        self.segment_layer = segment_layer
        self.vocabulary_size = token_embedding.vocabulary_size
        self.cutoffs = token_embedding.cutoffs

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
        """Number of positions to remember; may be set, after which to compile again."""
        return self.segment_layer.length

    @memory_length.setter
    def memory_length(self, length):
        self.segment_layer.length = length

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "cutoffs": list(self.cutoffs),
            "memory_length": self.memory_length,
        }


def token_ids_of(inputs):
    """Returns the token ids of what a preprocessor makes, or of plain ids."""
    return inputs["token_ids"] if isinstance(inputs, dict) else inputs


def padding_mask_of(inputs):
    """Returns the padding mask of what a preprocessor makes, as bools, or `None`."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")


def _last(hidden):
    """Returns the hidden states of the last layer; others may stand behind them."""
    return hidden[0] if isinstance(hidden, list) else hidden
