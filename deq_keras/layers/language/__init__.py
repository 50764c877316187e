"""Layers of language models: attention, embedding, softmax, segment memory."""

from deq_keras.layers.language.adaptive_embedding import AdaptiveEmbedding
from deq_keras.layers.language.adaptive_softmax import AdaptiveSoftmax
from deq_keras.layers.language.mixture_softmax import MixtureSoftmax
from deq_keras.layers.language.relative_attention import RelativeAttention
from deq_keras.layers.language.segment_memory import SegmentMemory
from deq_keras.layers.language.transformer_cell import TransformerCell
from deq_keras.layers.language.transformer_stack import TransformerStack
from deq_keras.layers.language.transformer_xl_cell import TransformerXLCell
from deq_keras.layers.language.transformer_xl_layer import TransformerXLLayer
from deq_keras.layers.language.trellis_cell import TrellisCell
from deq_keras.layers.language.trellis_stack import TrellisStack

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "MixtureSoftmax",
    "RelativeAttention",
    "SegmentMemory",
    "TransformerCell",
    "TransformerStack",
    "TransformerXLCell",
    "TransformerXLLayer",
    "TrellisCell",
    "TrellisStack",
]
