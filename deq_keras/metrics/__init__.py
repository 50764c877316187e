"""Metrics of equilibrium layers."""

from deq_keras.metrics.forward_residual import ForwardResidual
from deq_keras.metrics.running_mean import RunningMean

__all__ = ["ForwardResidual", "RunningMean"]
