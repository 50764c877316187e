"""The explicit baseline of the DEQ-Transformer: a fixed number of layers."""

import keras

from deq_keras.layers import TransformerCell
from deq_keras.models.language import (
    LanguageBackbone,
    LanguageCausalLM,
    StackArguments,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerBackbone(LanguageBackbone):
    """Explicit layers instead of the equilibrium of `DEQTransformerBackbone`.

    Has the same embedding, cell, dropout and memory, to compare quality, time and
    memory. Each of the `num_layers` layers of a `TransformerStack` receives the input.
    This is the unrolled equilibrium, with tied or untied weights. It is not published:
    Transformer-XL does not inject the input. The memory is as in Transformer-XL.

    Args:
        vocabulary_size: Positive integer. Number of tokens.
        num_layers: Positive integer. Number of layers.
        weight_tied: Boolean. Whether all layers are the same cell. Defaults to
            `False`.
        recompute: Boolean. Whether the backward pass recomputes the activations inside
            a layer instead of storing them. Defaults to `False`.
        **arguments: Other arguments of `DEQTransformerBackbone`, except the components
            of its equilibrium.

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
        self,
        vocabulary_size,
        num_layers,
        **arguments,
    ):
        # === Layers ===
        arguments = StackArguments(
            vocabulary_size=vocabulary_size, num_layers=num_layers, **arguments
        )
        token_embedding = arguments.embedding()
        stack = arguments.stack(TransformerCell, "cell")

        # === Functional Model ===
        super().__init__(arguments, token_embedding, stack)


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerCausalLM(LanguageCausalLM):
    """Language model of explicit layers: the baseline of `DEQTransformerCausalLM`.

    Train it directly or in a `NextTokenLossModel`. `generate()` is incremental: the
    layers process only the new token, with the keys and values of previous tokens.

    Args:
        backbone: `ExplicitTransformerBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Call arguments:
        inputs: Integer tensor `(batch, length)`, or a dict of it as `"token_ids"`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.

    Example:

    >>> model = ExplicitTransformerCausalLM(ExplicitTransformerBackbone(
    ...     100, num_layers=4, hidden_dim=16, num_heads=2, intermediate_dim=32))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = ExplicitTransformerBackbone
