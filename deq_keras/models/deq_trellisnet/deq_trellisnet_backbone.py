"""The DEQ-TrellisNet up to its hidden states."""

import keras

from deq_keras.models.deq_trellisnet.deq_trellisnet_presets import PRESETS
from deq_keras.models.kerashub import PackagedPresets, equilibrium_config
from deq_keras.models.language import LanguageBackbone, TrellisArguments


@keras.saving.register_keras_serializable(package="deq_keras")
class DEQTrellisNetBackbone(PackagedPresets, LanguageBackbone):
    """TrellisNet whose depth is an equilibrium, up to its hidden states.

    The model embeds token ids and injects them into a causal convolution with the gates
    of an LSTM, which it applies until a fixed point: `AdaptiveEmbedding`,
    `VariationalDropout`, `SegmentMemory` around `DEQ` of a `TrellisCell`,
    `VariationalDropout`.

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
        name: String. Name of the model. Defaults to `None`.
        trainable: Boolean. Defaults to `True`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`, with
            or without a `"padding_mask"`, `(batch, length)`, false at padding.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, hidden_dim)`.

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

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        intermediate_dim,
        *,
        dilation_rate=1,
        cell_shift=1,
        solver="anderson",
        gradient="neumann",
        regularizer="contraction",
        max_iter_jitter=0,
        initial_state="cell",
        **arguments,
    ):
        # === Layers ===
        arguments = TrellisArguments(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            intermediate_dim=intermediate_dim,
            **arguments,
        )
        token_embedding = arguments.embedding()
        memory = arguments.equilibrium(
            arguments.cell(dilation_rate=dilation_rate, cell_shift=cell_shift),
            solver,
            gradient,
            regularizer,
            max_iter_jitter=max_iter_jitter,
            initial_state=initial_state,
        )

        # === Functional Model ===
        super().__init__(arguments, token_embedding, memory)

    # === Config ===
    def get_config(self):
        return {
            **super().get_config(),
            "dilation_rate": self.deq.cell.dilation_rate,
            "cell_shift": self.deq.cell.cell_shift,
            **equilibrium_config(self.deq),
        }

    @property
    def deq(self):
        """The equilibrium layer, whose solver, gradient and regularizer may be set."""
        return self.segment_layer.deq
