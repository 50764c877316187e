"""Transformer-XL, the explicit network that the DEQ-Transformer is compared with."""

from deq_keras.models.transformer_xl.transformer_xl import (
    TransformerXLBackbone,
    TransformerXLCausalLM,
)

__all__ = ["TransformerXLBackbone", "TransformerXLCausalLM"]
