"""The DEQ-TrellisNet up to its hidden states."""

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
    TrellisCell,
)
from deq_keras.models.deq_trellisnet.deq_trellisnet_presets import PRESETS
from deq_keras.models.language import LanguageBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTrellisNetBackbone(LanguageBackbone):
    """TrellisNet whose depth is an equilibrium, up to its hidden states.

    The model embeds token ids and injects them into a causal convolution with the gates
    of an LSTM, which it applies until a fixed point: `AdaptiveEmbedding`,
    `VariationalDropout`, `SegmentMemory` around `DEQ` of a `TrellisCell`,
    `VariationalDropout`. `LanguageBackbone` describes the inputs and outputs.

    With a `memory_length` of 1, consecutive calls are consecutive segments of the same
    texts, as in the reference, the authors' PyTorch code (locuslab/deq): the last
    hidden and cell state precede the first position of the next segment. See
    `SegmentMemory`.

    The presets are architectures of published models, without weights: pass
    `load_weights=False` to `from_preset`. The function
    `deq_keras.converters.locuslab.load_deq_trellisnet` loads the authors' checkpoints.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: Positive integer. Size of the hidden states that later layers
            receive.
        intermediate_dim: Positive integer. Number of further channels, which only the
            equilibrium uses. The cell has the sum of both sizes as its units.
        embedding_dim: Positive integer. Size of the embedding. Defaults to `None`, that
            is `hidden_dim`, which a softmax with the same table needs.
        cutoffs: Tuple of positive integers. First token of each bucket of the softmax
            except the first; the embedding is one table. Defaults to `()`, one bucket.
        kernel_size: Integer >= 2. See `TrellisCell`. Defaults to `2`.
        dilation_rate: Positive integer. See `TrellisCell`. Defaults to `1`.
        cell_shift: Positive integer. See `TrellisCell`. Defaults to `1`.
        memory_length: Non-negative integer. Number of positions remembered from
            previous segments. Defaults to `0`.
        token_dropout: Float in `[0, 1)`. Rate at which tokens are dropped, with all
            their occurrences in a batch. Defaults to `0.0`.
        embedding_dropout: Float in `[0, 1)`. Rate at which channels of the embedding
            are dropped, each for all positions of a sample. Defaults to `0.0`.
        hidden_dropout: Float in `[0, 1)`. The same for the hidden state at the input of
            the cell. Defaults to `0.0`.
        output_dropout: Float in `[0, 1)`. The same for the hidden states. Defaults to
            `0.0`.
        weight_dropout: Float in `[0, 1)`. Rate at which weights of the cell are
            dropped; see `TrellisCell`. Defaults to `0.0`.
        weight_normalization: Boolean. Whether the kernels of the cell are weight
            normalized. Defaults to `True`.
        solver: See `DEQ`. Defaults to `"anderson"`.
        gradient: See `DEQ`. Defaults to `"neumann"`.
        regularizer: See `DEQ`. Defaults to `"contraction"`.
        max_iter_jitter: See `DEQ`. Defaults to `0`.
        initial_state: See `DEQ`. Defaults to `"cell"`.
        dtype: Dtype or policy of all layers. Defaults to `None`, Keras' own.
        **kwargs: `name` and `trainable`.

    Example:

    >>> backbone = DEQTrellisNetBackbone(
    ...     vocabulary_size=100, hidden_dim=8, intermediate_dim=16)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 8)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1909.01377), section 4.
    """

    presets = PRESETS
    converter = "deq_keras.converters.locuslab.load_deq_trellisnet"

    lora_layer_names = ("convolution", "injection_convolution")

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        intermediate_dim: int,
        *,
        embedding_dim: int | None = None,
        cutoffs: tuple[int, ...] = (),
        kernel_size: int = 2,
        dilation_rate: int = 1,
        cell_shift: int = 1,
        memory_length: int = 0,
        token_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        weight_normalization: bool = True,
        solver: str | Config | solvers.FixedPointSolver = "anderson",
        gradient: str | Config | gradients.EquilibriumGradient = "neumann",
        regularizer: str
        | Config
        | regularizers.EquilibriumRegularizer
        | None = "contraction",
        max_iter_jitter: int = 0,
        initial_state: str | Config | initial_states.InitialState = "cell",
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        hidden_dim = check_count("hidden_dim", hidden_dim)
        embedding_dim = check_optional_count("embedding_dim", embedding_dim)
        memory_length = check_integer("memory_length", memory_length, 0)
        intermediate_dim = check_count("intermediate_dim", intermediate_dim)
        token_embedding = AdaptiveEmbedding(
            vocabulary_size,
            hidden_dim if embedding_dim is None else embedding_dim,
            cutoffs=cutoffs,
            embeddings_initializer=keras.initializers.RandomUniform(-0.1, 0.1),
            scale=1.0,
            dropout_rate=check_rate("token_dropout", token_dropout),
            dtype=dtype,
            name="token_embedding",
        )
        cell = TrellisCell(
            hidden_dim + intermediate_dim,
            output_dim=hidden_dim,
            kernel_size=kernel_size,
            dilation_rate=dilation_rate,
            cell_shift=cell_shift,
            dropout_rate=check_rate("hidden_dropout", hidden_dropout),
            weight_dropout_rate=check_rate("weight_dropout", weight_dropout),
            weight_normalization=weight_normalization,
            dtype=dtype,
            name="cell",
        )
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
        segment_layer = SegmentMemory(
            deq, memory_length, dtype=dtype, name="segment_memory"
        )
        super().__init__(
            token_embedding,
            segment_layer,
            embedding_dropout=embedding_dropout,
            output_dropout=output_dropout,
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
        self.kernel_size = cell.kernel_size
        self.token_dropout = token_embedding.dropout_rate
        self.hidden_dropout = cell.dropout_rate
        self.weight_dropout = cell.weight_dropout_rate
        self.weight_normalization = cell.weight_normalization
        self.dilation_rate = cell.dilation_rate
        self.cell_shift = cell.cell_shift

    def get_config(self) -> Config:
        return {
            **arguments_of(self, DEQTrellisNetBackbone, self.deq),
            "embedding_dropout": self.embedding_dropout.rate,
            "output_dropout": self.output_dropout.rate,
            **super().get_config(),
        }

    @property
    def deq(self) -> Any:
        """The equilibrium layer, whose solver, gradient and regularizer may be set."""
        return self.segment_layer.deq
