"""Metrics of equilibrium layers, language models and reasoners."""

from deq_keras.metrics.adjoint_residual import AdjointResidual
from deq_keras.metrics.exact_match import ExactMatch
from deq_keras.metrics.forward_residual import ForwardResidual
from deq_keras.metrics.perplexity import Perplexity
from deq_keras.metrics.running_mean import RunningMean
from deq_keras.metrics.step_mean import StepMean

__all__ = [
    "AdjointResidual",
    "ExactMatch",
    "ForwardResidual",
    "Perplexity",
    "RunningMean",
    "StepMean",
]
