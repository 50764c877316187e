"""Measurements of the Jacobian at an equilibrium, of answers, and of a layer's time."""

from deq_keras.core.linearization import Linearization, linearize
from deq_keras.diagnostics.answers_by_budget import (
    AnswersByBudget,
    answers_by_budget,
    overthinking,
)
from deq_keras.diagnostics.certificate import Certificate, certify
from deq_keras.diagnostics.gradient_quality import GradientQuality, gradient_quality
from deq_keras.diagnostics.initial_state_comparison import (
    InitialStateComparison,
    alignment_score,
    answer_agreement,
    compare_initial_states,
)
from deq_keras.diagnostics.jacobian_norm import jacobian_norm
from deq_keras.diagnostics.rank_correlation import rank_correlation
from deq_keras.diagnostics.residual_traces import ResidualTraces, residual_traces
from deq_keras.diagnostics.spectral_radius import SpectralRadius, spectral_radius
from deq_keras.diagnostics.step_time import StepTime, StepTimer
from deq_keras.diagnostics.subject import ModelParts, split_model
from deq_keras.diagnostics.weight_tied_model import WeightTiedModel

__all__ = [
    "AnswersByBudget",
    "Certificate",
    "GradientQuality",
    "InitialStateComparison",
    "Linearization",
    "ModelParts",
    "ResidualTraces",
    "SpectralRadius",
    "StepTime",
    "StepTimer",
    "WeightTiedModel",
    "alignment_score",
    "answer_agreement",
    "answers_by_budget",
    "certify",
    "compare_initial_states",
    "gradient_quality",
    "jacobian_norm",
    "linearize",
    "overthinking",
    "rank_correlation",
    "residual_traces",
    "spectral_radius",
    "split_model",
]
