"""What the backbones of Transformers have in common."""

from deq_keras.checks import (
    check_boolean,
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.layers import AdaptiveEmbedding
from deq_keras.models.language_backbone import LanguageBackbone


class TransformerBackbone(LanguageBackbone):
    """A `LanguageBackbone` of `TransformerCell`s.

    A subclass says which layer they are in, in `make_segment_layer`.

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
        super().__init__(
            token_embedding,
            segment_layer,
            embedding_dropout=dropout,
            output_dropout=dropout,
            dtype=dtype,
            name=name,
            trainable=trainable,
        )

        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
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

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "embedding_dim": self.embedding_dim,
            "div_val": self.div_val,
            "normalize_first": self.normalize_first,
            "local_size": self.local_size,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "weight_normalization": self.weight_normalization,
        }
