"""Transformer-XL, the published explicit network: backbone and language model."""

import keras

from deq_keras.layers import TransformerXLLayer
from deq_keras.models.deq_transformer import ExplicitTransformerBackbone
from deq_keras.models.language import LanguageCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLBackbone(ExplicitTransformerBackbone):
    """Transformer-XL: layers with their own weights and their own memory.

    The published network (Dai et al., 2019): `AdaptiveEmbedding`, dropout, a
    `TransformerStack` of `TransformerXLLayer`s, and dropout. Only the first layer
    receives the embedding. `ExplicitTransformerBackbone`, in contrast, unrolls the cell
    of the DEQ-Transformer.

    Args:
        **kwargs: See `ExplicitTransformerBackbone`. `weight_normalization` defaults to
            `False`. Dropout is drawn for each position.

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


@keras.saving.register_keras_serializable(package="deq_keras")
class TransformerXLCausalLM(LanguageCausalLM):
    """Language model of Transformer-XL.

    Train it directly or in a `NextTokenLossModel`. `generate()` is incremental: the
    layers process only the new token, with the keys and values of previous tokens.

    Args:
        backbone: `TransformerXLBackbone`.
        **kwargs: See `LanguageCausalLM`.

    Example:

    >>> model = TransformerXLCausalLM(TransformerXLBackbone(
    ...     100, hidden_dim=16, num_heads=2, intermediate_dim=32, num_layers=4))
    >>> tuple(model(np.array([[1, 5, 3], [7, 0, 2]])).shape)
    (2, 3, 100)
    """

    backbone_cls = TransformerXLBackbone
