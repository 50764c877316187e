"""Language models whose Transformer is an equilibrium."""

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.deq_transformer.deq_transformer_causal_lm import (
    DEQTransformerCausalLM,
)
from deq_keras.models.deq_transformer.deq_transformer_causal_lm_preprocessor import (
    DEQTransformerCausalLMPreprocessor,
)

__all__ = [
    "DEQTransformerBackbone",
    "DEQTransformerCausalLM",
    "DEQTransformerCausalLMPreprocessor",
]
