"""Reasoners: small models that iterate until their answer stops changing."""

from deq_keras.models.reasoner.reasoner_backbone import ReasonerBackbone
from deq_keras.models.reasoner.reasoner_tagger import ReasonerTagger

__all__ = ["ReasonerBackbone", "ReasonerTagger"]
