"""Measurements of the Jacobian at an equilibrium."""

from deq_keras.diagnostics.jacobian_norm import jacobian_norm
from deq_keras.diagnostics.spectral_radius import SpectralRadius, spectral_radius
from deq_keras.linearization import Linearization, linearize

__all__ = [
    "Linearization",
    "SpectralRadius",
    "jacobian_norm",
    "linearize",
    "spectral_radius",
]
