"""Metrics of equilibrium layers, language models and reasoners."""

from deq_keras.metrics.means import GradientError, RunningMean, StepMean
from deq_keras.metrics.scores import ExactMatch, Perplexity

__all__ = [
    "ExactMatch",
    "GradientError",
    "Perplexity",
    "RunningMean",
    "StepMean",
]
