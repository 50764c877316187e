"""Models of the papers, in the style of KerasHub."""

import deq_keras.tokenizers  # noqa: F401  Saved models have them: they must be known.
from deq_keras.models.deq_transformer import (
    DEQTransformerBackbone,
    DEQTransformerCausalLM,
    DEQTransformerCausalLMPreprocessor,
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
from deq_keras.models.segment_reading import SegmentReading

__all__ = [
    "DEQTransformerBackbone",
    "DEQTransformerCausalLM",
    "DEQTransformerCausalLMPreprocessor",
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
    "SegmentReading",
]

# The old names promised the published Transformer-XL, which these are not.
_RENAMED = {
    "TransformerXLBackbone": "ExplicitTransformerBackbone",
    "TransformerXLCausalLM": "ExplicitTransformerCausalLM",
}


def __getattr__(name):
    new = f": it is `{_RENAMED[name]}` now" if name in _RENAMED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{new}")
