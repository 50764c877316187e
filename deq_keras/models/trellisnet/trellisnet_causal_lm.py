"""The language model on a TrellisNet."""

import keras

from deq_keras.checks import check_non_negative
from deq_keras.models.trellis_causal_lm import TrellisCausalLM
from deq_keras.models.trellisnet.auxiliary_loss import AuxiliaryLoss
from deq_keras.models.trellisnet.trellisnet_backbone import TrellisNetBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class TrellisNetCausalLM(TrellisCausalLM):
    """Language model of a number of levels: the baseline of `DEQTrellisNetCausalLM`.

    For training and evaluation, alone or in a `NextTokenLossModel`, which adds the
    auxiliary losses: `auxiliary_weight` times the mean loss of each level that the
    backbone's `auxiliary_frequency` names. It does not `generate()`.

    Args:
        backbone: `TrellisNetBackbone`.
        preprocessor: See `DEQTrellisNetCausalLM`. Defaults to `None`.
        tie_weights: See there. Defaults to `True`.
        num_experts: See there. Defaults to `1`.
        expert_dropout: See there. Defaults to `0.0`.
        auxiliary_weight: Float >= 0. Defaults to `0.1`, as published for WikiText-103.
        compile: Boolean. Whether to compile with KerasHub's defaults. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.
        head_dtype: See `DEQTrellisNetCausalLM`. Defaults to `None`.

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
        num_experts=1,
        expert_dropout=0.0,
        auxiliary_weight=0.1,
        compile=True,
        name=None,
        head_dtype=None,
    ):
        auxiliary_weight = check_non_negative("auxiliary_weight", auxiliary_weight)
        super().__init__(
            backbone,
            preprocessor,
            tie_weights,
            num_experts,
            expert_dropout,
            compile=compile,
            name=name,
            head_dtype=head_dtype,
        )
        self.auxiliary_weight = auxiliary_weight

    def token_losses(self, token_ids, targets):
        hidden = self.backbone.hidden_states(token_ids)
        losses = [self.softmax(states, targets) for states in hidden]
        return AuxiliaryLoss(self.auxiliary_weight, name="auxiliary_loss")(losses)

    def get_config(self):
        return {**super().get_config(), "auxiliary_weight": self.auxiliary_weight}
