"""TrellisNet, the explicit baseline of the DEQ-TrellisNet."""

import keras
from keras import ops

from deq_keras.core.checks import check_non_negative
from deq_keras.layers import TrellisStack
from deq_keras.models.language import (
    LanguageBackbone,
    LanguageCausalLM,
    TrellisArguments,
)


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

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, hidden_dim)`.

    Example:

    >>> backbone = TrellisNetBackbone(
    ...     100, hidden_dim=8, intermediate_dim=16, num_layers=6)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 8)

    Reference:
        [Bai, Kolter and Koltun, 2019](https://arxiv.org/abs/1810.06682).
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        intermediate_dim,
        num_layers,
        dilations=(1,),
        auxiliary_frequency=None,
        recompute=False,
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
        stack = TrellisStack(
            arguments.cell(),
            num_layers,
            dilations=dilations,
            length=arguments.memory_length,
            auxiliary_frequency=auxiliary_frequency,
            recompute=recompute,
            dtype=arguments.dtype,
            name="levels",
        )

        # === Functional Model ===
        super().__init__(arguments, token_embedding, stack)

    # === Config ===
    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "dilations": list(self.segment_layer.dilations),
            "auxiliary_frequency": self.segment_layer.auxiliary_frequency,
            "recompute": self.segment_layer.recompute,
        }

    @property
    def num_layers(self):
        return self.segment_layer.num_layers

    def hidden_states(self, token_ids):
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

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.

    Example:

    >>> model = TrellisNetCausalLM(TrellisNetBackbone(
    ...     100, hidden_dim=8, intermediate_dim=16, num_layers=6))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = TrellisNetBackbone

    def __init__(
        self,
        backbone,
        preprocessor=None,
        tie_weights=True,
        *,
        auxiliary_weight=0.1,
        **kwargs,
    ):
        auxiliary_weight = check_non_negative("auxiliary_weight", auxiliary_weight)
        super().__init__(backbone, preprocessor, tie_weights, **kwargs)
        self.auxiliary_weight = auxiliary_weight

    def token_losses(self, token_ids, targets):
        hidden = self.backbone.hidden_states(token_ids)
        losses = [self.softmax(states, targets) for states in hidden]
        return AuxiliaryLoss(self.auxiliary_weight, name="auxiliary_loss")(losses)

    def generate(self, *args, **kwargs):
        raise NotImplementedError(
            "A TrellisNetCausalLM does not generate. Use a DEQTrellisNetCausalLM."
        )

    def get_config(self):
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

    def __init__(self, weight, **kwargs):
        super().__init__(**kwargs)
        self.weight = check_non_negative("weight", weight)

    def call(self, losses, training=False):
        first, *others = losses
        if training and others:
            self.add_loss(self.weight * sum(ops.mean(loss) for loss in others))
        return first

    def get_config(self):
        return {**super().get_config(), "weight": self.weight}
