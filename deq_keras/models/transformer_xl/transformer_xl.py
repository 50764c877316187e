"""Transformer-XL, the published explicit network: backbone and language model."""

import keras

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.layers import (
    AdaptiveEmbedding,
    TransformerStack,
    TransformerXLLayer,
    VariationalDropout,
)
from deq_keras.models.language import LanguageBackbone, LanguageCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLBackbone(LanguageBackbone):
    """Transformer-XL: layers with their own weights and their own memory.

    The published network (Dai et al., 2019): `AdaptiveEmbedding`, dropout, a
    `TransformerStack` of `TransformerXLLayer`s, and dropout. Only the first layer
    receives the embedding. `ExplicitTransformerBackbone`, in contrast, unrolls the cell
    of the DEQ-Transformer.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: Positive even integer, a multiple of `num_heads`. Size of the
            hidden states.
        num_heads: Positive integer. Number of attention heads.
        intermediate_dim: Positive integer. Number of units of the hidden layer of each
            layer's second branch.
        num_layers: Positive integer. Number of layers.
        weight_tied: Boolean. Whether all layers are the same. Defaults to `False`.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a layer instead of storing them. Defaults to `False`.
        weight_normalization: Boolean. Whether kernels are weight normalized. Defaults
            to `False`.
        **arguments: Other arguments of `DEQTransformerBackbone`, except the components
            of its equilibrium. Dropout is drawn for each position.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, hidden_dim)`.

    Example:

    >>> backbone = TransformerXLBackbone(
    ...     100, hidden_dim=16, num_heads=2, intermediate_dim=32, num_layers=4)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 16)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860).
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        num_heads,
        intermediate_dim,
        num_layers,
        *,
        embedding_dim=None,
        cutoffs=(),
        div_val=1,
        normalize_first=False,
        memory_length=0,
        local_size=None,
        dropout=0.0,
        attention_dropout=0.0,
        weight_normalization=False,
        weight_tied=False,
        recompute=False,
        dtype=None,
        name=None,
        trainable=True,
    ):
        # === Layers ===
        hidden_dim = check_count("hidden_dim", hidden_dim)
        embedding_dim = check_optional_count("embedding_dim", embedding_dim)
        memory_length = check_integer("memory_length", memory_length, 0)
        num_layers = check_count("num_layers", num_layers)
        weight_tied = check_boolean("weight_tied", weight_tied)
        dropout = check_rate("dropout", dropout)
        attention_dropout = check_rate("attention_dropout", attention_dropout)
        token_embedding = AdaptiveEmbedding(
            vocabulary_size,
            hidden_dim if embedding_dim is None else embedding_dim,
            output_dim=hidden_dim,
            cutoffs=cutoffs,
            div_val=div_val,
            dtype=dtype,
            name="token_embedding",
        )
        cells = [
            TransformerXLLayer(
                hidden_dim,
                num_heads,
                intermediate_dim,
                normalize_first=normalize_first,
                local_size=local_size,
                dropout_rate=dropout,
                attention_dropout_rate=attention_dropout,
                weight_normalization=weight_normalization,
                dtype=dtype,
                name=f"layer_{index}",
            )
            for index in range(1 if weight_tied else num_layers)
        ]
        segment_layer = TransformerStack(
            cells, num_layers, memory_length, recompute, dtype=dtype, name="layers"
        )
        embedding_dropout = VariationalDropout(
            dropout,
            dtype=dtype,
            name="embedding_dropout",
        )
        output_dropout = VariationalDropout(
            dropout,
            dtype=dtype,
            name="output_dropout",
        )

        # === Functional Model ===
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        x = token_embedding(token_ids)
        x = embedding_dropout(x)
        x = segment_layer(x)
        super().__init__(
            inputs=token_ids,
            outputs=output_dropout(x),
            dtype=dtype,
            name=name,
            trainable=trainable,
        )

        # === Config ===
        self.segment_layer = segment_layer
        self.token_embedding = token_embedding
        self.embedding_dropout = embedding_dropout
        self.output_dropout = output_dropout
        self.vocabulary_size = token_embedding.vocabulary_size
        self.hidden_dim = hidden_dim
        self.num_heads = cells[0].num_heads
        self.intermediate_dim = cells[0].intermediate_dim
        self.embedding_dim = embedding_dim
        self.cutoffs = token_embedding.cutoffs
        self.div_val = token_embedding.div_val
        self.normalize_first = cells[0].normalize_first
        self.local_size = cells[0].local_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.weight_normalization = cells[0].weight_normalization
        self.num_layers = num_layers
        self.weight_tied = weight_tied
        self.recompute = segment_layer.recompute

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
            "num_layers": self.num_layers,
            "weight_tied": self.weight_tied,
            "recompute": self.recompute,
        }


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLCausalLM(LanguageCausalLM):
    """Language model of Transformer-XL.

    Train it directly or in a `NextTokenLossModel`. `generate()` is incremental: the
    layers process only the new token, with the keys and values of previous tokens.

    Args:
        backbone: `TransformerXLBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.

    Example:

    >>> model = TransformerXLCausalLM(TransformerXLBackbone(
    ...     100, hidden_dim=16, num_heads=2, intermediate_dim=32, num_layers=4))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = TransformerXLBackbone
