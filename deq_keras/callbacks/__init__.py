"""Keras callbacks for equilibrium layers."""

from deq_keras.callbacks.equilibrium_diagnostics import EquilibriumDiagnostics

__all__ = ["EquilibriumDiagnostics"]
