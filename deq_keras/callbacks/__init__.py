"""Keras callbacks for equilibrium layers."""

from deq_keras.callbacks.equilibrium_diagnostics import EquilibriumDiagnostics
from deq_keras.callbacks.equilibrium_summaries import EquilibriumSummaries

__all__ = ["EquilibriumDiagnostics", "EquilibriumSummaries"]
