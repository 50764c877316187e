"""The language model on the explicit baseline of the DEQ-Transformer."""

import keras

from deq_keras.models.explicit_transformer.explicit_transformer_backbone import (
    ExplicitTransformerBackbone,
)
from deq_keras.models.key_value_generation import StackGeneration
from deq_keras.models.transformer_causal_lm import TransformerCausalLM


@keras.saving.register_keras_serializable(package="deq_keras")
class ExplicitTransformerCausalLM(StackGeneration, TransformerCausalLM):
    """Language model of explicit layers: the baseline of `DEQTransformerCausalLM`.

    Alone or in a `NextTokenLossModel`. `generate()` is incremental, as that of a
    `DEQTransformerCausalLM`.

    Args:
        backbone: `ExplicitTransformerBackbone`.
        preprocessor: See `DEQTransformerCausalLM`. Defaults to `None`.
        tie_weights: See there. Defaults to `True`.
        tie_projections: See there. Defaults to `None`.
        compile: Boolean. Whether to compile with KerasHub's defaults. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.

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
