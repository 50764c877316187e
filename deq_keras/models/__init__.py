"""Models of the papers, in the style of KerasHub."""

from deq_keras.models.deq_transformer import (
    DEQTransformerBackbone,
    DEQTransformerCausalLM,
    NextTokenLossModel,
)

__all__ = [
    "DEQTransformerBackbone",
    "DEQTransformerCausalLM",
    "NextTokenLossModel",
]
