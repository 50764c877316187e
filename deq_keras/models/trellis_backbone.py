"""What the backbones of TrellisNets have in common."""

import keras

from deq_keras.checks import (
    check_boolean,
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.layers import AdaptiveEmbedding
from deq_keras.models.language_backbone import LanguageBackbone


class TrellisBackbone(LanguageBackbone):
    """A `LanguageBackbone` of a `TrellisCell`.

    A subclass says which layer it is in, in `make_segment_layer`.

    Args:
        **layer_arguments: Arguments of `make_segment_layer`.

    The others are described in `DEQTrellisNetBackbone`.
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        intermediate_dim,
        embedding_dim=None,
        cutoffs=(),
        kernel_size=2,
        memory_length=0,
        token_dropout=0.0,
        embedding_dropout=0.0,
        hidden_dropout=0.0,
        output_dropout=0.0,
        weight_dropout=0.0,
        weight_normalization=True,
        dtype=None,
        name=None,
        trainable=True,
        **layer_arguments,
    ):
        hidden_dim = check_count("hidden_dim", hidden_dim)
        intermediate_dim = check_count("intermediate_dim", intermediate_dim)
        embedding_dim = check_optional_count("embedding_dim", embedding_dim)
        kernel_size = check_integer("kernel_size", kernel_size, minimum=2)
        memory_length = check_integer("memory_length", memory_length, minimum=0)
        rates = {
            "token_dropout": check_rate("token_dropout", token_dropout),
            "embedding_dropout": check_rate("embedding_dropout", embedding_dropout),
            "hidden_dropout": check_rate("hidden_dropout", hidden_dropout),
            "output_dropout": check_rate("output_dropout", output_dropout),
            "weight_dropout": check_rate("weight_dropout", weight_dropout),
        }
        weight_normalization = check_boolean(
            "weight_normalization", weight_normalization
        )
        token_embedding = AdaptiveEmbedding(
            vocabulary_size,
            hidden_dim if embedding_dim is None else embedding_dim,
            cutoffs=cutoffs,
            embeddings_initializer=keras.initializers.RandomUniform(-0.1, 0.1),
            scale=1.0,
            dropout_rate=token_dropout,
            dtype=dtype,
            name="token_embedding",
        )
        cell_arguments = {
            "units": hidden_dim + intermediate_dim,
            "output_dim": hidden_dim,
            "kernel_size": kernel_size,
            "dropout_rate": hidden_dropout,
            "weight_dropout_rate": weight_dropout,
            "weight_normalization": weight_normalization,
            "dtype": dtype,
        }
        super().__init__(
            token_embedding,
            self.make_segment_layer(
                cell_arguments, memory_length, dtype, **layer_arguments
            ),
            embedding_dropout=embedding_dropout,
            output_dropout=output_dropout,
            dtype=dtype,
            name=name,
            trainable=trainable,
        )
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
        self.kernel_size = kernel_size
        self.rates = rates
        self.weight_normalization = weight_normalization

    @staticmethod
    def make_segment_layer(cell_arguments, length, dtype, **layer_arguments):
        """Returns the layer that remembers.

        Args:
            cell_arguments: Dict of arguments of a `TrellisCell`: all but its name and
                what **layer_arguments say.
            length: Integer >= 0. Number of positions to remember.
            dtype: Dtype or policy of the layer.
            **layer_arguments: What the constructor does not take itself.
        """
        raise NotImplementedError

    def get_config(self):
        return {
            **super().get_config(),
            **self.rates,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "embedding_dim": self.embedding_dim,
            "kernel_size": self.kernel_size,
            "weight_normalization": self.weight_normalization,
        }
