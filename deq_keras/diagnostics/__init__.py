"""Measurements of the Jacobian at an equilibrium, of outputs, and of a layer's time."""

from deq_keras.core.linearization import Linearization, linearize
from deq_keras.diagnostics.certificate import Certificate, certify
from deq_keras.diagnostics.gradient_quality import GradientQuality, gradient_quality
from deq_keras.diagnostics.initial_state_comparison import (
    InitialStateComparison,
    alignment_score,
    compare_initial_states,
    prediction_agreement,
)
from deq_keras.diagnostics.iterates import iterates
from deq_keras.diagnostics.jacobian_norm import jacobian_norm
from deq_keras.diagnostics.overthinking import overthinking
from deq_keras.diagnostics.predictor import Prediction, Predictor
from deq_keras.diagnostics.rank_correlation import rank_correlation
from deq_keras.diagnostics.residual_traces import ResidualTraces, residual_traces
from deq_keras.diagnostics.spectral_radius import SpectralRadius, spectral_radius
from deq_keras.diagnostics.step_time import StepTime, StepTimer
from deq_keras.diagnostics.subject import ModelParts, split_model

__all__ = [
    "Certificate",
    "GradientQuality",
    "InitialStateComparison",
    "Linearization",
    "ModelParts",
    "Prediction",
    "Predictor",
    "ResidualTraces",
    "SpectralRadius",
    "StepTime",
    "StepTimer",
    "alignment_score",
    "certify",
    "compare_initial_states",
    "gradient_quality",
    "iterates",
    "jacobian_norm",
    "linearize",
    "overthinking",
    "prediction_agreement",
    "rank_correlation",
    "residual_traces",
    "spectral_radius",
    "split_model",
]
