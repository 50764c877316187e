"""Metrics of equilibrium layers and of language models."""

from deq_keras.metrics.forward_residual import ForwardResidual
from deq_keras.metrics.perplexity import Perplexity
from deq_keras.metrics.running_mean import RunningMean
from deq_keras.metrics.training_mean import TrainingMean

__all__ = ["ForwardResidual", "Perplexity", "RunningMean", "TrainingMean"]
