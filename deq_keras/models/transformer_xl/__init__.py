"""Transformer-XL, the explicit baseline of the DEQ-Transformer."""

from deq_keras.models.transformer_xl.transformer_xl import (
    TransformerXLBackbone,
    TransformerXLCausalLM,
)

__all__ = ["TransformerXLBackbone", "TransformerXLCausalLM"]
