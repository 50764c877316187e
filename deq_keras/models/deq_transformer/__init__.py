"""DEQ-Transformer, and the explicit layers that it is compared with."""

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
