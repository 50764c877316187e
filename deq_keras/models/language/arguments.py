"""Architectures of language models as objects, which backbones pass to cells."""

import dataclasses

import keras

from deq_keras.core.checks import (
    check_boolean,
    check_count,
    check_counts,
    check_integer,
    check_optional_count,
    check_rate,
)
from deq_keras.layers import (
    DEQ,
    AdaptiveEmbedding,
    SegmentMemory,
    TransformerStack,
    TrellisCell,
)

# Keras' own arguments of a backbone, which KerasHub's `get_config` writes.
_OF_KERAS = ("dtype", "name", "trainable")


@dataclasses.dataclass(kw_only=True)
class LanguageArguments:
    """Arguments of every `LanguageBackbone`.

    `DEQTransformerBackbone` describes the fields. Unknown names raise a `TypeError`,
    wrong values a `ValueError`.
    """

    vocabulary_size: int
    hidden_dim: int
    intermediate_dim: int
    embedding_dim: int | None = None
    cutoffs: tuple[int, ...] = ()
    memory_length: int = 0
    weight_normalization: bool = True
    dtype: str | keras.DTypePolicy | None = None
    name: str | None = None
    trainable: bool = True

    def __post_init__(self):
        self._check(check_count, "vocabulary_size", "hidden_dim", "intermediate_dim")
        self._check(check_optional_count, "embedding_dim")
        self.cutoffs = check_counts("cutoffs", self.cutoffs, allow_empty=True)
        self.memory_length = check_integer("memory_length", self.memory_length, 0)
        self._check(check_boolean, "weight_normalization")

    def _check(self, check, *names):
        """Replaces fields by their checked values, which are plain Python."""
        for name in names:
            setattr(self, name, check(name, getattr(self, name)))

    def fields(self):
        """Returns a dict of all fields but Keras' own arguments."""
        return {
            name: value for name, value in vars(self).items() if name not in _OF_KERAS
        }

    def equilibrium(self, cell, solver, gradient, regularizer, **options):
        """Returns a `SegmentMemory` of a `DEQ` layer of a cell."""
        deq = DEQ(
            cell, solver, gradient, regularizer, dtype=self.dtype, name="deq", **options
        )
        return SegmentMemory(
            deq, self.memory_length, dtype=self.dtype, name="segment_memory"
        )

    def _embedding(self, **kwargs):
        dim = self.hidden_dim if self.embedding_dim is None else self.embedding_dim
        return AdaptiveEmbedding(
            self.vocabulary_size,
            dim,
            cutoffs=self.cutoffs,
            dtype=self.dtype,
            name="token_embedding",
            **kwargs,
        )


@dataclasses.dataclass(kw_only=True)
class TransformerArguments(LanguageArguments):
    """Arguments of the backbones of Transformers; see `DEQTransformerBackbone`."""

    num_heads: int
    div_val: int = 1
    normalize_first: bool = False
    local_size: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        self._check(check_count, "num_heads", "div_val")
        self._check(check_boolean, "normalize_first")
        self._check(check_optional_count, "local_size")
        self._check(check_rate, "dropout", "attention_dropout")

    @property
    def dropout_rates(self):
        """Rates of the dropout after the embedding and of the hidden states."""
        return self.dropout, self.dropout

    def embedding(self):
        """Returns the `AdaptiveEmbedding` of the tokens."""
        return self._embedding(output_dim=self.hidden_dim, div_val=self.div_val)

    def cell(self, cell_cls, name):
        """Returns a `TransformerCell`, or another layer with its arguments."""
        return cell_cls(
            self.hidden_dim,
            self.num_heads,
            self.intermediate_dim,
            normalize_first=self.normalize_first,
            local_size=self.local_size,
            dropout_rate=self.dropout,
            attention_dropout_rate=self.attention_dropout,
            weight_normalization=self.weight_normalization,
            dtype=self.dtype,
            name=name,
        )


@dataclasses.dataclass(kw_only=True)
class StackArguments(TransformerArguments):
    """Arguments of Transformers of explicit layers; see `TransformerXLBackbone`."""

    num_layers: int
    weight_tied: bool = False
    recompute: bool = False

    def __post_init__(self):
        super().__post_init__()
        self._check(check_count, "num_layers")
        self._check(check_boolean, "weight_tied", "recompute")

    def stack(self, cell_cls, name):
        """Returns the `TransformerStack`; the names of its cells begin with `name`."""
        cells = [
            self.cell(cell_cls, f"{name}_{index}")
            for index in range(1 if self.weight_tied else self.num_layers)
        ]
        return TransformerStack(
            cells,
            self.num_layers,
            self.memory_length,
            self.recompute,
            dtype=self.dtype,
            name="layers",
        )


@dataclasses.dataclass(kw_only=True)
class TrellisArguments(LanguageArguments):
    """Arguments of the backbones of TrellisNets; see `DEQTrellisNetBackbone`."""

    kernel_size: int = 2
    token_dropout: float = 0.0
    embedding_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    weight_dropout: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        self.kernel_size = check_integer("kernel_size", self.kernel_size, 2)
        self._check(check_rate, "token_dropout", "embedding_dropout", "hidden_dropout")
        self._check(check_rate, "output_dropout", "weight_dropout")

    @property
    def dropout_rates(self):
        """Rates of the dropout after the embedding and of the hidden states."""
        return self.embedding_dropout, self.output_dropout

    def embedding(self):
        """Returns the `AdaptiveEmbedding` of the tokens: one table for all of them."""
        return self._embedding(
            embeddings_initializer=keras.initializers.RandomUniform(-0.1, 0.1),
            scale=1.0,
            dropout_rate=self.token_dropout,
        )

    def cell(self, **kwargs):
        """Returns the `TrellisCell`; `kwargs` are further arguments of the cell."""
        return TrellisCell(
            self.hidden_dim + self.intermediate_dim,
            output_dim=self.hidden_dim,
            kernel_size=self.kernel_size,
            dropout_rate=self.hidden_dropout,
            weight_dropout_rate=self.weight_dropout,
            weight_normalization=self.weight_normalization,
            dtype=self.dtype,
            name="cell",
            **kwargs,
        )
