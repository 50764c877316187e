"""Transformer-XL up to its hidden states."""

import keras

from deq_keras.layers import TransformerXLLayer
from deq_keras.models.transformer_stack_backbone import TransformerStackBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLBackbone(TransformerStackBackbone):
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

    layer_cls = TransformerXLLayer
    layer_name = "layer"
    noise_shape = None

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        num_heads,
        intermediate_dim,
        num_layers,
        *,
        weight_normalization=False,
        **kwargs,
    ):
        super().__init__(
            vocabulary_size,
            num_layers,
            hidden_dim=hidden_dim,
            num_heads=num_heads,
            intermediate_dim=intermediate_dim,
            weight_normalization=weight_normalization,
            **kwargs,
        )
