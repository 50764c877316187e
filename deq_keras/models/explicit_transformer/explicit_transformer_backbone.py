"""The explicit baseline of the DEQ-Transformer up to its hidden states."""

import keras

from deq_keras.layers import TransformerCell
from deq_keras.models.transformer_stack_backbone import TransformerStackBackbone


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerBackbone(TransformerStackBackbone):
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

    layer_cls = TransformerCell
    layer_name = "cell"
