"""Transformer-XL, the explicit network that the DEQ-Transformer is compared with."""

from deq_keras.models.transformer_xl.transformer_xl_backbone import (
    TransformerXLBackbone,
)
from deq_keras.models.transformer_xl.transformer_xl_causal_lm import (
    TransformerXLCausalLM,
)

__all__ = ["TransformerXLBackbone", "TransformerXLCausalLM"]
