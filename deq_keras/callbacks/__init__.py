"""Keras callbacks for equilibrium layers."""

from deq_keras.callbacks.budget_selection import BudgetSelection
from deq_keras.callbacks.equilibrium_diagnostics import EquilibriumDiagnostics
from deq_keras.callbacks.equilibrium_summaries import EquilibriumSummaries
from deq_keras.callbacks.equilibrium_warnings import EquilibriumWarnings
from deq_keras.callbacks.penalty_target import PenaltyTarget
from deq_keras.callbacks.regularizer_schedule import RegularizerSchedule
from deq_keras.callbacks.step_size_tuning import StepSizeTuning

__all__ = [
    "BudgetSelection",
    "EquilibriumDiagnostics",
    "EquilibriumSummaries",
    "EquilibriumWarnings",
    "PenaltyTarget",
    "RegularizerSchedule",
    "StepSizeTuning",
]
