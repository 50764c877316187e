"""Metrics of equilibrium layers, language models and reasoners."""

from deq_keras.metrics.exact_match import ExactMatch
from deq_keras.metrics.gradient_error import GradientError
from deq_keras.metrics.perplexity import Perplexity
from deq_keras.metrics.running_mean import RunningMean
from deq_keras.metrics.step_mean import StepMean

__all__ = [
    "ExactMatch",
    "GradientError",
    "Perplexity",
    "RunningMean",
    "StepMean",
]
