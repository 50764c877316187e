"""The DEQ-Transformer up to its hidden states."""

from typing import Any

import keras

from deq_keras import gradients, initial_states, regularizers, solvers
from deq_keras.core.checks import (
    check_count,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import (
    DEQ,
    AdaptiveEmbedding,
    SegmentMemory,
    TransformerCell,
    TransformerStack,
    TransformerXLCell,
    TransformerXLLayer,
)
from deq_keras.models.deq_transformer.deq_transformer_presets import PRESETS
from deq_keras.models.deq_transformer.started_equilibrium import StartedEquilibrium
from deq_keras.models.language import LanguageBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTransformerBackbone(LanguageBackbone):
    """Transformer whose depth is an equilibrium, up to its hidden states.

    The model embeds token ids and injects them into one Transformer layer, which it
    applies until a fixed point: `AdaptiveEmbedding`, `VariationalDropout`,
    `SegmentMemory` around `DEQ` of a `TransformerCell`, `VariationalDropout`. Positions
    are relative, so sequences can have any length. `LanguageBackbone` describes the
    inputs and outputs.

    With a `memory_length`, consecutive calls are consecutive segments of the same
    texts; see `SegmentMemory` and `reset_memory`.

    With `num_explicit_layers`, the embedding first passes through layers of a
    Transformer-XL. Their output is the injection of the equilibrium, in a
    `TransformerXLCell`, and the state where its solve starts.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: Positive even integer, a multiple of `num_heads`. Size of the
            hidden states.
        num_heads: Positive integer. Number of attention heads.
        intermediate_dim: See `TransformerCell`.
        embedding_dim: Positive integer. Size of the embedding of frequent tokens.
            Defaults to `None`, that is `hidden_dim`.
        cutoffs: Tuple of positive integers. First token of each bucket of the adaptive
            embedding except the first. Defaults to `()`, one bucket.
        div_val: Positive integer. Factor by which the embedding shrinks from bucket to
            bucket. Defaults to `1`.
        normalize_first: See `TransformerCell`. Defaults to `False`.
        memory_length: Non-negative integer. Number of positions remembered from
            previous segments. Defaults to `0`.
        local_size: See `TransformerCell`. Defaults to `None`.
        dropout: Float in `[0, 1)`. Rate at which channels of the embedding, the cell
            and the hidden states are dropped, each for all positions of a sample.
            Defaults to `0.0`.
        attention_dropout: See `attention_dropout_rate` of `TransformerCell`. Defaults
            to `0.0`.
        weight_normalization: See `TransformerCell`. Defaults to `True`.
        solver: See `DEQ`. Defaults to `"anderson"`.
        gradient: See `DEQ`. Defaults to `"neumann"`.
        regularizer: See `DEQ`. Defaults to `"contraction"`.
        dtype: Dtype or policy of all layers. Defaults to `None`, Keras' own.
        max_iter_jitter: See `DEQ`. Defaults to `0`.
        initial_state: See `DEQ`. Defaults to `"cell"`.
        num_explicit_layers: Non-negative integer. Number of layers before the
            equilibrium, each with weights of its own. Requires
            `normalize_first=False`. Defaults to `0`.
        **kwargs: `name` and `trainable`.

    Example:

    >>> backbone = DEQTransformerBackbone(
    ...     vocabulary_size=100, hidden_dim=16, num_heads=2, intermediate_dim=32)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 16)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1909.01377), section 4.
    """

    presets = PRESETS
    converter = "deq_keras.converters.locuslab.load_deq_transformer"

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        *,
        embedding_dim: int | None = None,
        cutoffs: tuple[int, ...] = (),
        div_val: int = 1,
        normalize_first: bool = False,
        memory_length: int = 0,
        local_size: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        weight_normalization: bool = True,
        solver: str | Config | solvers.FixedPointSolver = "anderson",
        gradient: str | Config | gradients.EquilibriumGradient = "neumann",
        regularizer: str
        | Config
        | regularizers.EquilibriumRegularizer
        | None = "contraction",
        dtype: str | keras.DTypePolicy | None = None,
        max_iter_jitter: int = 0,
        initial_state: str | Config | initial_states.InitialState = "cell",
        num_explicit_layers: int = 0,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        hidden_dim = check_count("hidden_dim", hidden_dim)
        embedding_dim = check_optional_count("embedding_dim", embedding_dim)
        memory_length = check_integer("memory_length", memory_length, 0)
        num_explicit_layers = check_integer(
            "num_explicit_layers", num_explicit_layers, 0
        )
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

        def layer(layer_cls: Any, name: str) -> Any:
            return layer_cls(
                hidden_dim,
                num_heads,
                intermediate_dim,
                normalize_first=normalize_first,
                local_size=local_size,
                dropout_rate=dropout,
                attention_dropout_rate=attention_dropout,
                weight_normalization=weight_normalization,
                dtype=dtype,
                name=name,
            )

        cell_cls = TransformerXLCell if num_explicit_layers else TransformerCell
        cell = layer(cell_cls, "cell")
        deq = DEQ(
            cell,
            solver,
            gradient,
            regularizer,
            max_iter_jitter=max_iter_jitter,
            initial_state=initial_state,
            dtype=dtype,
            name="deq",
        )
        segment_layer: Any = SegmentMemory(
            deq, memory_length, dtype=dtype, name="segment_memory"
        )
        if num_explicit_layers:
            names = [f"layer_{index}" for index in range(num_explicit_layers)]
            explicit = TransformerStack(
                [layer(TransformerXLLayer, name) for name in names],
                num_explicit_layers,
                memory_length,
                dtype=dtype,
                name="layers",
            )
            segment_layer = StartedEquilibrium(
                explicit, segment_layer, dtype=dtype, name="started_equilibrium"
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
        self.num_heads = cell.num_heads
        self.intermediate_dim = cell.intermediate_dim
        self.embedding_dim = embedding_dim
        self.div_val = token_embedding.div_val
        self.normalize_first = cell.normalize_first
        self.local_size = cell.local_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.weight_normalization = cell.weight_normalization
        self.num_explicit_layers = num_explicit_layers

    def get_config(self) -> Config:
        arguments = arguments_of(self, DEQTransformerBackbone, self.deq)
        return {**arguments, **super().get_config()}

    @property
    def deq(self) -> Any:
        """The equilibrium layer, whose solver, gradient and regularizer may be set."""
        return self.segment_layer.deq
