"""Measurements of the Jacobian at an equilibrium, and of a layer's time."""

from deq_keras.diagnostics.jacobian_norm import jacobian_norm
from deq_keras.diagnostics.spectral_radius import SpectralRadius, spectral_radius
from deq_keras.diagnostics.step_time import StepTime, StepTimer
from deq_keras.linearization import Linearization, linearize

__all__ = [
    "Linearization",
    "SpectralRadius",
    "StepTime",
    "StepTimer",
    "jacobian_norm",
    "linearize",
    "spectral_radius",
]
