"""Models of the papers, in the style of KerasHub."""

import deq_keras.tokenizers  # noqa: F401  Registers the tokenizers of saved models.
from deq_keras.models.continuous_batching import (
    ContinuousBatchingModel,
    SolveSegment,
)
from deq_keras.models.deq_transformer import (
    DEQTransformerBackbone,
    DEQTransformerCausalLM,
    DEQTransformerCausalLMPreprocessor,
    ExplicitTransformerBackbone,
    ExplicitTransformerCausalLM,
)
from deq_keras.models.deq_trellisnet import (
    DEQTrellisNetBackbone,
    DEQTrellisNetCausalLM,
    DEQTrellisNetCausalLMPreprocessor,
    TrellisNetBackbone,
    TrellisNetCausalLM,
)
from deq_keras.models.explicit_twin import UntiedLayers, explicit_twin
from deq_keras.models.image_restorer import (
    ImageRestorer,
    ImageRestorerBackbone,
    ImageRestorerPreprocessor,
)
from deq_keras.models.language import (
    LanguageBackbone,
    LanguageCausalLM,
    NextTokenLossModel,
    SegmentReading,
)
from deq_keras.models.mdeq import (
    MDEQBackbone,
    MDEQImageClassifier,
    MDEQImageClassifierPreprocessor,
    MDEQImageConverter,
    MDEQImageSegmenter,
    MDEQImageSegmenterPreprocessor,
)
from deq_keras.models.monitored_model import MonitoredModel
from deq_keras.models.monotone import MonotoneClassifier
from deq_keras.models.reasoner import ReasonerBackbone, ReasonerTagger
from deq_keras.models.transformer_xl import (
    TransformerXLBackbone,
    TransformerXLCausalLM,
)

__all__ = [
    "ContinuousBatchingModel",
    "DEQTransformerBackbone",
    "DEQTransformerCausalLM",
    "DEQTransformerCausalLMPreprocessor",
    "DEQTrellisNetBackbone",
    "DEQTrellisNetCausalLM",
    "DEQTrellisNetCausalLMPreprocessor",
    "ExplicitTransformerBackbone",
    "ExplicitTransformerCausalLM",
    "ImageRestorer",
    "ImageRestorerBackbone",
    "ImageRestorerPreprocessor",
    "LanguageBackbone",
    "LanguageCausalLM",
    "MDEQBackbone",
    "MDEQImageClassifier",
    "MDEQImageClassifierPreprocessor",
    "MDEQImageConverter",
    "MDEQImageSegmenter",
    "MDEQImageSegmenterPreprocessor",
    "MonitoredModel",
    "MonotoneClassifier",
    "NextTokenLossModel",
    "ReasonerBackbone",
    "ReasonerTagger",
    "SegmentReading",
    "SolveSegment",
    "TransformerXLBackbone",
    "TransformerXLCausalLM",
    "UntiedLayers",
    "explicit_twin",
    "TrellisNetBackbone",
    "TrellisNetCausalLM",
]
