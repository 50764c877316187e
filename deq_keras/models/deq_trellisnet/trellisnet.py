"""TrellisNet, the explicit baseline of the DEQ-TrellisNet."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.checks import (
    check_count,
    check_integer,
    check_non_negative,
    check_optional_count,
    check_rate,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.layers import (
    AdaptiveEmbedding,
    TrellisCell,
    TrellisStack,
)
from deq_keras.models.language import LanguageBackbone, LanguageCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class TrellisNetBackbone(LanguageBackbone):
    """TrellisNet with a fixed number of levels, without a solve.

    The published network: a `TrellisStack` of one `TrellisCell`, whose weights all
    levels share. The cell has two biases and the published cell has one, which yields
    the same function.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: See `DEQTrellisNetBackbone`.
        intermediate_dim: See `DEQTrellisNetBackbone`.
        num_layers: Positive integer. Number of levels.
        dilations: Tuple of positive integers; see `TrellisStack`. Defaults to `(1,)`.
        auxiliary_frequency: Positive integer. Interval of levels with an auxiliary
            loss; see `TrellisNetCausalLM`. Defaults to `None`, no auxiliary loss.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a level instead of storing them. Defaults to `False`.
        **arguments: Other arguments of `DEQTrellisNetBackbone`, except `dilation_rate`,
            `cell_shift` and the components of its equilibrium.

    Example:

    >>> backbone = TrellisNetBackbone(
    ...     100, hidden_dim=8, intermediate_dim=16, num_layers=6)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 8)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1810.06682).
    """

    lora_layer_names = ("convolution", "injection_convolution")

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        intermediate_dim: int,
        num_layers: int,
        dilations: tuple[int, ...] = (1,),
        auxiliary_frequency: int | None = None,
        recompute: bool = False,
        *,
        embedding_dim: int | None = None,
        cutoffs: tuple[int, ...] = (),
        kernel_size: int = 2,
        memory_length: int = 0,
        token_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        output_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        weight_normalization: bool = True,
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
            dropout_rate=check_rate("hidden_dropout", hidden_dropout),
            weight_dropout_rate=check_rate("weight_dropout", weight_dropout),
            weight_normalization=weight_normalization,
            dtype=dtype,
            name="cell",
        )
        segment_layer = TrellisStack(
            cell,
            num_layers,
            dilations=dilations,
            length=memory_length,
            auxiliary_frequency=auxiliary_frequency,
            recompute=recompute,
            dtype=dtype,
            name="levels",
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
        self.num_layers = segment_layer.num_layers
        self.dilations = segment_layer.dilations
        self.auxiliary_frequency = segment_layer.auxiliary_frequency
        self.recompute = segment_layer.recompute

    def get_config(self) -> Config:
        return {
            **arguments_of(self, TrellisNetBackbone),
            "embedding_dropout": self.embedding_dropout.rate,
            "output_dropout": self.output_dropout.rate,
            **super().get_config(),
        }

    def hidden_states(self, token_ids: Any) -> Any:
        """Returns the hidden states of the last level, and of levels with a loss.

        Args:
            token_ids: Integer tensor `(batch, length)`.
        """
        embedded = self.embedding_dropout(self.token_embedding(token_ids))
        hidden = self.segment_layer(embedded)
        if self.segment_layer.auxiliary_frequency is None:
            hidden = [hidden]
        return [self.output_dropout(states) for states in hidden]


@keras.saving.register_keras_serializable(package="deq_keras")
class TrellisNetCausalLM(LanguageCausalLM):
    """Language model on a TrellisNet: the baseline of `DEQTrellisNetCausalLM`.

    Train and evaluate it directly or in a `NextTokenLossModel`, which adds the
    auxiliary losses: `auxiliary_weight` times the mean loss of each level that the
    backbone's `auxiliary_frequency` selects. `generate()` is not supported.

    Args:
        backbone: `TrellisNetBackbone`.
        auxiliary_weight: Non-negative float. Defaults to `0.1`, as published for
            WikiText-103.
        **kwargs: See `LanguageCausalLM`.

    Example:

    >>> model = TrellisNetCausalLM(TrellisNetBackbone(
    ...     100, hidden_dim=8, intermediate_dim=16, num_layers=6))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = TrellisNetBackbone

    def __init__(
        self,
        backbone: keras.Model,
        preprocessor: keras.layers.Layer | None = None,
        *,
        auxiliary_weight: float = 0.1,
        **kwargs: Any,
    ) -> None:
        auxiliary_weight = check_non_negative("auxiliary_weight", auxiliary_weight)
        super().__init__(backbone, preprocessor, **kwargs)
        self.auxiliary_weight = auxiliary_weight

    def token_losses(self, token_ids: Any, targets: Any) -> Any:
        hidden = self.backbone.hidden_states(token_ids)
        losses = [self.softmax(states, targets) for states in hidden]
        return AuxiliaryLoss(self.auxiliary_weight, name="auxiliary_loss")(losses)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            "A TrellisNetCausalLM does not generate. Use a DEQTrellisNetCausalLM."
        )

    # The parts of `generate` that KerasHub and `LanguageCausalLM` make public.
    generate_step = build_cache = call_with_cache = generate
    read_after = generation_constants = generate

    def get_config(self) -> Config:
        return {**super().get_config(), "auxiliary_weight": self.auxiliary_weight}


@keras.saving.register_keras_serializable(package="deq_keras")
class AuxiliaryLoss(keras.layers.Layer):
    """Returns the losses of the last layer, and adds the others in training.

    Args:
        weight: Non-negative float. Weight of the mean loss of each other layer.
        **kwargs: Arguments of `keras.layers.Layer`, such as `name` and `dtype`.

    Call arguments:
        losses: List of tensors `(batch, length)`, the last layer's first.
        training: Boolean.

    Returns:
        The first of the losses.
    """

    def __init__(self, weight: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = check_non_negative("weight", weight)

    def call(self, losses: Any, training: bool = False) -> Any:
        first, *others = losses
        if training and others:
            self.add_loss(self.weight * sum(ops.mean(loss) for loss in others))
        return first

    def get_config(self) -> Config:
        return {**super().get_config(), "weight": self.weight}
