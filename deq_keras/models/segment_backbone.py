"""What the backbones that read texts segment by segment have in common."""

import functools

import keras
from keras import ops
from keras_hub.models import Backbone

from deq_keras.layers import AdaptiveEmbedding, TransformerCell, VariationalDropout
from deq_keras.models.segment_reading import SegmentReading


class SegmentBackbone(SegmentReading, Backbone):
    """Embedding, a layer that remembers the segments before, dropout.

    Args:
        make_layer: Function of a function that makes a `TransformerCell` of a name,
            and the memory length. Returns the layer.

    The others are described in `DEQTransformerBackbone`.
    """

    def __init__(
        self,
        make_layer,
        vocabulary_size,
        hidden_dim,
        num_heads,
        intermediate_dim,
        embedding_dim=None,
        cutoffs=(),
        div_val=1,
        normalize_first=False,
        memory_length=0,
        local_size=None,
        dropout=0.0,
        attention_dropout=0.0,
        weight_normalization=True,
        dtype=None,
        name=None,
        trainable=True,
    ):
        token_embedding = AdaptiveEmbedding(
            vocabulary_size,
            hidden_dim if embedding_dim is None else embedding_dim,
            hidden_dim,
            cutoffs=cutoffs,
            div_val=div_val,
            dtype=dtype,
            name="token_embedding",
        )
        make_cell = functools.partial(
            TransformerCell,
            hidden_dim,
            num_heads,
            intermediate_dim,
            normalize_first=normalize_first,
            local_size=local_size,
            dropout_rate=dropout,
            attention_dropout_rate=attention_dropout,
            weight_normalization=weight_normalization,
            dtype=dtype,
        )
        segment_layer = make_layer(make_cell, memory_length)
        dropouts = [
            VariationalDropout(
                dropout,
                noise_shape=(None, 1, None),
                dtype=dtype,
                name=f"{name}_dropout",
            )
            for name in ("embedding", "output")
        ]

        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        hidden = segment_layer(dropouts[0](token_embedding(token_ids)))
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
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
        self.cutoffs = tuple(cutoffs)
        self.div_val = div_val
        self.normalize_first = normalize_first
        self.local_size = local_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.weight_normalization = weight_normalization

    def call(self, inputs, training=None, mask=None):
        token_ids, padding_mask = token_ids_of(inputs), padding_mask_of(inputs)
        if padding_mask is None:
            return super().call(token_ids, training=training, mask=mask)
        embedded = self.embedding_dropout(
            self.token_embedding(token_ids), training=training
        )
        hidden = self.segment_layer(embedded, mask=padding_mask, training=training)
        return self.output_dropout(hidden, training=training)

    @property
    def memory_length(self):
        """Positions to remember; may be set, after which to compile again."""
        return self.segment_layer.length

    @memory_length.setter
    def memory_length(self, length):
        self.segment_layer.length = length

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "embedding_dim": self.embedding_dim,
            "cutoffs": list(self.cutoffs),
            "div_val": self.div_val,
            "normalize_first": self.normalize_first,
            "memory_length": self.memory_length,
            "local_size": self.local_size,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "weight_normalization": self.weight_normalization,
        }


def token_ids_of(inputs):
    """Returns the token ids of what a preprocessor makes, or of plain ids."""
    return inputs["token_ids"] if isinstance(inputs, dict) else inputs


def padding_mask_of(inputs):
    """Returns the padding mask of what a preprocessor makes, as bools, or `None`."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")
