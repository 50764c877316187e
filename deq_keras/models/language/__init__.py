"""Base classes of language models: backbone, task, generation, preprocessing."""

from deq_keras.models.language.backbone import LanguageBackbone
from deq_keras.models.language.causal_lm import LanguageCausalLM
from deq_keras.models.language.next_token_loss import NextTokenLossModel
from deq_keras.models.language.segments import SegmentReading

__all__ = [
    "LanguageBackbone",
    "LanguageCausalLM",
    "NextTokenLossModel",
    "SegmentReading",
]
