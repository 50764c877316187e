"""What the backbones of language models have in common."""

import keras
from keras import ops
from keras_hub.models import Backbone

from deq_keras.checks import (
    check_boolean,
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.layers import AdaptiveEmbedding, VariationalDropout
from deq_keras.models.segment_reading import SegmentReading


class TransformerBackbone(SegmentReading, Backbone):
    """Embedding, a layer that remembers the segments before, dropout.

    A subclass says which layer that is, in `make_segment_layer`.

    Args:
        **layer_arguments: Arguments of `make_segment_layer`.

    The others are described in `DEQTransformerBackbone`.
    """

    def __init__(
        self,
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
        **layer_arguments,
    ):
        hidden_dim = check_count("hidden_dim", hidden_dim)
        num_heads = check_count("num_heads", num_heads)
        intermediate_dim = check_count("intermediate_dim", intermediate_dim)
        embedding_dim = check_optional_count("embedding_dim", embedding_dim)
        normalize_first = check_boolean("normalize_first", normalize_first)
        memory_length = check_integer("memory_length", memory_length, minimum=0)
        local_size = check_optional_count("local_size", local_size)
        dropout = check_rate("dropout", dropout)
        attention_dropout = check_rate("attention_dropout", attention_dropout)
        weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        token_embedding = AdaptiveEmbedding(
            vocabulary_size,
            hidden_dim if embedding_dim is None else embedding_dim,
            hidden_dim,
            cutoffs=cutoffs,
            div_val=div_val,
            dtype=dtype,
            name="token_embedding",
        )
        cell_arguments = {
            "units": hidden_dim,
            "num_heads": num_heads,
            "intermediate_dim": intermediate_dim,
            "normalize_first": normalize_first,
            "local_size": local_size,
            "dropout_rate": dropout,
            "attention_dropout_rate": attention_dropout,
            "weight_normalization": weight_normalization,
            "dtype": dtype,
        }
        segment_layer = self.make_segment_layer(
            cell_arguments, memory_length, dtype, **layer_arguments
        )
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
        self.vocabulary_size = token_embedding.vocabulary_size
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
        self.cutoffs = token_embedding.cutoffs
        self.div_val = token_embedding.div_val
        self.normalize_first = normalize_first
        self.local_size = local_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.weight_normalization = weight_normalization

    @staticmethod
    def make_segment_layer(cell_arguments, length, dtype, **layer_arguments):
        """Returns the layer that remembers.

        Args:
            cell_arguments: Dict of the arguments of a `TransformerCell`, but its name.
            length: Integer >= 0. Number of positions to remember.
            dtype: Dtype or policy of the layer.
            **layer_arguments: What the constructor does not take itself.
        """
        raise NotImplementedError

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
        """Number of positions to remember; may be set, after which to compile again."""
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
