"""Reasoners: small models that think until their answer stands."""

from deq_keras.models.reasoner.reasoner_backbone import ReasonerBackbone
from deq_keras.models.reasoner.reasoner_tagger import ReasonerTagger

__all__ = ["ReasonerBackbone", "ReasonerTagger"]
