"""TrellisNet up to its hidden states."""

import keras

from deq_keras.layers import TrellisCell, TrellisStack
from deq_keras.models.trellis_backbone import TrellisBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class TrellisNetBackbone(TrellisBackbone):
    """TrellisNet of a number of levels, where `DEQTrellisNetBackbone` has a solve.

    The published network: a `TrellisStack` of one `TrellisCell`, whose weights all
    levels share. The cell has two biases where the published one has one, which is the
    same function.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: See `DEQTrellisNetBackbone`.
        intermediate_dim: See there.
        num_layers: Positive integer. Number of levels.
        dilations: Tuple of positive integers; see `TrellisStack`. Defaults to `(1,)`.
        auxiliary_frequency: Positive integer. Every so many levels have a loss too; see
            `TrellisNetCausalLM`. Defaults to `None`, no level has.
        recompute: Boolean. Whether the backward pass computes the activations inside
            a level again instead of keeping them. Defaults to `False`.
        **kwargs: Other arguments of `DEQTrellisNetBackbone`, but for `dilation_rate`,
            `cell_shift` and the last ones, of the equilibrium.

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
        **kwargs,
    ):
        super().__init__(
            vocabulary_size,
            hidden_dim,
            intermediate_dim,
            num_layers=num_layers,
            dilations=dilations,
            auxiliary_frequency=auxiliary_frequency,
            recompute=recompute,
            **kwargs,
        )

    @staticmethod
    def make_segment_layer(cell_arguments, length, dtype, **layer_arguments):
        cell = TrellisCell(**cell_arguments, name="cell")
        return TrellisStack(
            cell, length=length, **layer_arguments, dtype=dtype, name="levels"
        )

    @property
    def num_layers(self):
        return self.segment_layer.num_layers

    def hidden_states(self, token_ids):
        """Returns the hidden states of the last level, and of those with a loss.

        Args:
            token_ids: Integer tensor `(batch, length)`.
        """
        embedded = self.embedding_dropout(self.token_embedding(token_ids))
        hidden = self.segment_layer(embedded)
        if self.segment_layer.auxiliary_frequency is None:
            hidden = [hidden]
        return [self.output_dropout(states) for states in hidden]

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "dilations": list(self.segment_layer.dilations),
            "auxiliary_frequency": self.segment_layer.auxiliary_frequency,
            "recompute": self.segment_layer.recompute,
        }
