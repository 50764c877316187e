"""The explicit baseline of the DEQ-Transformer up to its hidden states."""

import keras

from deq_keras.checks import check_boolean, check_count
from deq_keras.layers import TransformerCell, TransformerStack
from deq_keras.models.transformer_backbone import TransformerBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerBackbone(TransformerBackbone):
    """Explicit layers where `DEQTransformerBackbone` has an equilibrium.

    The same embedding, cell, dropout and memory, to compare quality, time and memory:
    `num_layers` layers of a `TransformerStack`, each with the input injected. This is
    the equilibrium unrolled, tied or not, and no published architecture: the layers of
    Transformer-XL have no such injection. The memory is as in Transformer-XL.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        num_layers: Positive integer. Number of layers.
        weight_tied: Boolean. Whether all layers are the same cell. Defaults to
            `False`.
        recompute: Boolean. Whether the backward pass computes the activations inside
            a layer again instead of keeping them. Defaults to `False`.
        **kwargs: Other arguments of `DEQTransformerBackbone`, but for `solver`,
            `gradient` and `regularizer`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, hidden_dim)`.

    Example:

    >>> backbone = ExplicitTransformerBackbone(
    ...     100, num_layers=4, hidden_dim=16, num_heads=2, intermediate_dim=32)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 16)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860), section 3.2: the memory.
    """

    def __init__(
        self, vocabulary_size, num_layers, weight_tied=False, recompute=False, **kwargs
    ):
        num_layers = check_count("num_layers", num_layers)
        weight_tied = check_boolean("weight_tied", weight_tied)
        super().__init__(
            vocabulary_size,
            num_layers=num_layers,
            num_cells=1 if weight_tied else num_layers,
            recompute=recompute,
            **kwargs,
        )
        self.num_layers = num_layers
        self.weight_tied = weight_tied
        self.recompute = self.segment_layer.recompute

    @staticmethod
    def make_segment_layer(
        cell_arguments, length, dtype, num_layers, num_cells, recompute
    ):
        cells = [
            TransformerCell(**cell_arguments, name=f"cell_{index}")
            for index in range(num_cells)
        ]
        return TransformerStack(
            cells, num_layers, length, recompute, dtype=dtype, name="layers"
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "weight_tied": self.weight_tied,
            "recompute": self.recompute,
        }
