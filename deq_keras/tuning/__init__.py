"""Chooses the cheapest solver that keeps the predictions of a trained model."""

from deq_keras.tuning.result import (
    Outcome,
    Promise,
    Setting,
    Tuning,
    describe,
    upper_bound,
)
from deq_keras.tuning.tune import tune

__all__ = [
    "Outcome",
    "Promise",
    "Setting",
    "Tuning",
    "describe",
    "tune",
    "upper_bound",
]
