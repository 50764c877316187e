"""Transformer-XL, the published explicit network: backbone and language model."""

import keras

from deq_keras.layers import TransformerXLLayer
from deq_keras.models.language import (
    LanguageBackbone,
    LanguageCausalLM,
    StackArguments,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLBackbone(LanguageBackbone):
    """Transformer-XL: layers with their own weights and their own memory.

    The published network (Dai et al., 2019): `AdaptiveEmbedding`, dropout, a
    `TransformerStack` of `TransformerXLLayer`s, and dropout. Only the first layer
    receives the embedding. `ExplicitTransformerBackbone`, in contrast, unrolls the cell
    of the DEQ-Transformer.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        hidden_dim: Positive even integer, a multiple of `num_heads`. Size of the
            hidden states.
        num_heads: Positive integer. Number of attention heads.
        intermediate_dim: Positive integer. Number of units of the hidden layer of each
            layer's second branch.
        num_layers: Positive integer. Number of layers.
        weight_tied: Boolean. Whether all layers are the same. Defaults to `False`.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a layer instead of storing them. Defaults to `False`.
        weight_normalization: Boolean. Whether kernels are weight normalized. Defaults
            to `False`.
        **arguments: Other arguments of `DEQTransformerBackbone`, except the components
            of its equilibrium. Dropout is drawn for each position.

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
        *,
        weight_normalization=False,
        **arguments,
    ):
        # === Layers ===
        arguments = StackArguments(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            num_heads=num_heads,
            intermediate_dim=intermediate_dim,
            num_layers=num_layers,
            weight_normalization=weight_normalization,
            **arguments,
        )
        token_embedding = arguments.embedding()
        stack = arguments.stack(TransformerXLLayer, "layer")

        # === Functional Model ===
        super().__init__(arguments, token_embedding, stack)


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLCausalLM(LanguageCausalLM):
    """Language model of Transformer-XL.

    Train it directly or in a `NextTokenLossModel`. `generate()` is incremental: the
    layers process only the new token, with the keys and values of previous tokens.

    Args:
        backbone: `TransformerXLBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.

    Example:

    >>> model = TransformerXLCausalLM(TransformerXLBackbone(
    ...     100, hidden_dim=16, num_heads=2, intermediate_dim=32, num_layers=4))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = TransformerXLBackbone
