"""Metrics of equilibrium layers and models."""

from deq_keras.metrics.means import GradientError, RunningMean, StepMean
from deq_keras.metrics.scores import ExactMatch, PeakSignalToNoiseRatio, Perplexity

__all__ = [
    "ExactMatch",
    "GradientError",
    "PeakSignalToNoiseRatio",
    "Perplexity",
    "RunningMean",
    "StepMean",
]
