"""Models of the papers, in the style of KerasHub."""

import deq_keras.tokenizers  # noqa: F401  Saved models have them: they must be known.
from deq_keras.models.deq_transformer import (
    DEQTransformerBackbone,
    DEQTransformerCausalLM,
    DEQTransformerCausalLMPreprocessor,
)
from deq_keras.models.deq_trellisnet import (
    DEQTrellisNetBackbone,
    DEQTrellisNetCausalLM,
    DEQTrellisNetCausalLMPreprocessor,
)
from deq_keras.models.explicit_transformer import (
    ExplicitTransformerBackbone,
    ExplicitTransformerCausalLM,
)
from deq_keras.models.mdeq import (
    MDEQBackbone,
    MDEQImageClassifier,
    MDEQImageClassifierPreprocessor,
    MDEQImageConverter,
    MDEQImageSegmenter,
    MDEQImageSegmenterPreprocessor,
)
from deq_keras.models.monotone import MonotoneClassifier
from deq_keras.models.next_token_loss_model import NextTokenLossModel
from deq_keras.models.reasoner import ReasonerBackbone, ReasonerTagger
from deq_keras.models.segment_reading import SegmentReading
from deq_keras.models.transformer_xl import (
    TransformerXLBackbone,
    TransformerXLCausalLM,
)
from deq_keras.models.trellisnet import TrellisNetBackbone, TrellisNetCausalLM

__all__ = [
    "DEQTransformerBackbone",
    "DEQTransformerCausalLM",
    "DEQTransformerCausalLMPreprocessor",
    "DEQTrellisNetBackbone",
    "DEQTrellisNetCausalLM",
    "DEQTrellisNetCausalLMPreprocessor",
    "ExplicitTransformerBackbone",
    "ExplicitTransformerCausalLM",
    "MDEQBackbone",
    "MDEQImageClassifier",
    "MDEQImageClassifierPreprocessor",
    "MDEQImageConverter",
    "MDEQImageSegmenter",
    "MDEQImageSegmenterPreprocessor",
    "MonotoneClassifier",
    "NextTokenLossModel",
    "ReasonerBackbone",
    "ReasonerTagger",
    "SegmentReading",
    "TransformerXLBackbone",
    "TransformerXLCausalLM",
    "TrellisNetBackbone",
    "TrellisNetCausalLM",
]
