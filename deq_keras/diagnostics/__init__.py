"""Measurements of the Jacobian at an equilibrium, of answers, and of a layer's time."""

from deq_keras.diagnostics.agreement import alignment_score, answer_agreement
from deq_keras.diagnostics.answers_by_budget import AnswersByBudget, answers_by_budget
from deq_keras.diagnostics.jacobian_norm import jacobian_norm
from deq_keras.diagnostics.overthinking import overthinking
from deq_keras.diagnostics.rank_correlation import rank_correlation
from deq_keras.diagnostics.spectral_radius import SpectralRadius, spectral_radius
from deq_keras.diagnostics.start_comparison import StartComparison, compare_starts
from deq_keras.diagnostics.step_time import StepTime, StepTimer
from deq_keras.diagnostics.weight_tied_model import WeightTiedModel
from deq_keras.linearization import Linearization, linearize

__all__ = [
    "AnswersByBudget",
    "Linearization",
    "SpectralRadius",
    "StartComparison",
    "StepTime",
    "StepTimer",
    "WeightTiedModel",
    "alignment_score",
    "answer_agreement",
    "answers_by_budget",
    "compare_starts",
    "jacobian_norm",
    "linearize",
    "overthinking",
    "rank_correlation",
    "spectral_radius",
]
