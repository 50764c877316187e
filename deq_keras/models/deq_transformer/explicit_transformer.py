"""The explicit baseline of the DEQ-Transformer: a fixed number of layers."""

from typing import Any

import keras

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import (
    AdaptiveEmbedding,
    TransformerCell,
    TransformerStack,
)
from deq_keras.models.language import LanguageBackbone, LanguageCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerBackbone(LanguageBackbone):
    """Explicit layers instead of the equilibrium of `DEQTransformerBackbone`.

    Has the same embedding, cell, dropout and memory, to compare quality, time and
    memory. Each of the `num_layers` layers of a `TransformerStack` receives the input.
    This is the unrolled equilibrium, with tied or untied weights. It is not published:
    Transformer-XL does not inject the input. The memory is as in Transformer-XL.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: See `DEQTransformerBackbone`, like the arguments that are not named
            here.
        num_heads: See `DEQTransformerBackbone`.
        intermediate_dim: See `DEQTransformerBackbone`.
        num_layers: Positive integer. Number of layers.
        weight_normalization: Boolean. Whether kernels are weight normalized. Defaults
            to `None`, the default of the layers: `True` for a `TransformerCell`.
        weight_tied: Boolean. Whether all layers are the same cell. Defaults to
            `False`.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a layer instead of storing them. Defaults to `False`.

    Example:

    >>> backbone = ExplicitTransformerBackbone(
    ...     100, num_layers=4, hidden_dim=16, num_heads=2, intermediate_dim=32)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 16)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2: the memory.
    """

    # Class of the layers, and the prefix of their names.
    layer_cls = TransformerCell
    layer_name = "cell"

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        num_layers: int,
        *,
        embedding_dim: int | None = None,
        cutoffs: tuple[int, ...] = (),
        div_val: int = 1,
        normalize_first: bool = False,
        memory_length: int = 0,
        local_size: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        weight_normalization: bool | None = None,
        weight_tied: bool = False,
        recompute: bool = False,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
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
        optional = {}
        if weight_normalization is not None:
            optional["weight_normalization"] = weight_normalization
        cells = [
            self.layer_cls(
                hidden_dim,
                num_heads,
                intermediate_dim,
                normalize_first=normalize_first,
                local_size=local_size,
                dropout_rate=dropout,
                attention_dropout_rate=attention_dropout,
                dtype=dtype,
                name=f"{self.layer_name}_{index}",
                **optional,
            )
            for index in range(1 if weight_tied else num_layers)
        ]
        segment_layer = TransformerStack(
            cells, num_layers, memory_length, recompute, dtype=dtype, name="layers"
        )
        super().__init__(
            token_embedding,
            segment_layer,
            embedding_dropout=dropout,
            output_dropout=dropout,
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.hidden_dim = hidden_dim
        self.num_heads = cells[0].num_heads
        self.intermediate_dim = cells[0].intermediate_dim
        self.embedding_dim = embedding_dim
        self.div_val = token_embedding.div_val
        self.normalize_first = cells[0].normalize_first
        self.local_size = cells[0].local_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.weight_normalization = cells[0].weight_normalization
        self.num_layers = num_layers
        self.weight_tied = weight_tied
        self.recompute = segment_layer.recompute

    def get_config(self) -> Config:
        return {
            **arguments_of(self, ExplicitTransformerBackbone),
            **super().get_config(),
        }


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerCausalLM(LanguageCausalLM):
    """Language model of explicit layers: the baseline of `DEQTransformerCausalLM`.

    Train it directly or in a `NextTokenLossModel`. `generate()` is incremental: the
    layers process only the new token, with the keys and values of previous tokens.

    Args:
        backbone: `ExplicitTransformerBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Example:

    >>> model = ExplicitTransformerCausalLM(ExplicitTransformerBackbone(
    ...     100, num_layers=4, hidden_dim=16, num_heads=2, intermediate_dim=32))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = ExplicitTransformerBackbone
