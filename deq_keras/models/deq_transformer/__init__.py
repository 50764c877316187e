"""DEQ-Transformer, and its baseline of explicit layers."""

from deq_keras.models.deq_transformer.deq_transformer_backbone import (
    DEQTransformerBackbone,
)
from deq_keras.models.deq_transformer.deq_transformer_causal_lm import (
    DEQTransformerCausalLM,
    DEQTransformerCausalLMPreprocessor,
)
from deq_keras.models.deq_transformer.explicit_transformer import (
    ExplicitTransformerBackbone,
    ExplicitTransformerCausalLM,
)

__all__ = [
    "DEQTransformerBackbone",
    "DEQTransformerCausalLM",
    "DEQTransformerCausalLMPreprocessor",
    "ExplicitTransformerBackbone",
    "ExplicitTransformerCausalLM",
]
