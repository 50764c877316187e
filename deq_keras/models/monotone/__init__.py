"""Monotone operator networks."""

from deq_keras.models.monotone.monotone_classifier import MonotoneClassifier

__all__ = ["MonotoneClassifier"]
