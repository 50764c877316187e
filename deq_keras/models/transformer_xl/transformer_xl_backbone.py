"""Transformer-XL up to its hidden states."""

import keras

from deq_keras.checks import check_boolean, check_count
from deq_keras.layers import TransformerStack, TransformerXLLayer
from deq_keras.models.transformer_backbone import TransformerBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLBackbone(TransformerBackbone):
    """Transformer-XL: layers of their own weights, and a memory at each of them.

    The published network (Dai et al., 2019): `AdaptiveEmbedding`, dropout, a
    `TransformerStack` of `TransformerXLLayer`s, the first of which alone sees the
    embedding, dropout. `ExplicitTransformerBackbone` is something else, the cell of the
    DEQ-Transformer unrolled.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: Positive even integer, a multiple of `num_heads`. Size of the
            hidden states.
        num_heads: Positive integer. Number of attention heads.
        intermediate_dim: Positive integer. Number of units of the hidden layer of each
            layer's second branch.
        num_layers: Positive integer. Number of layers.
        weight_tied: Boolean. Whether all layers are the same. Defaults to `False`.
        recompute: Boolean. Whether the backward pass computes the activations inside
            a layer again instead of keeping them. Defaults to `False`.
        weight_normalization: Boolean. Whether kernels are weight normalized. Defaults
            to `False`.
        **kwargs: Other arguments of `DEQTransformerBackbone`, but for those of the
            equilibrium. Dropout is drawn for each position.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, hidden_dim)`.

    Example:

    >>> backbone = TransformerXLBackbone(
    ...     100, hidden_dim=16, num_heads=2, intermediate_dim=32, num_layers=4)
    >>> tuple(backbone(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 16)

    Reference:
        [Dai et al., 2019](https://arxiv.org/abs/1901.02860).
    """

    noise_shape = None

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        num_heads,
        intermediate_dim,
        num_layers,
        weight_tied=False,
        recompute=False,
        weight_normalization=False,
        **kwargs,
    ):
        num_layers = check_count("num_layers", num_layers)
        weight_tied = check_boolean("weight_tied", weight_tied)
        super().__init__(
            vocabulary_size,
            hidden_dim,
            num_heads,
            intermediate_dim,
            weight_normalization=weight_normalization,
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
            TransformerXLLayer(**cell_arguments, name=f"layer_{index}")
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
