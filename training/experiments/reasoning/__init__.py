"""Reasoners, trained on small or easy problems and tested on larger, harder ones."""

from ...registry import Experiment, Score
from .schema import ReasoningConfig

EXPERIMENT = Experiment(
    ReasoningConfig,
    "job:ReasoningJob",
    Score("exact_match", "exact answers [%]", 100, ".1f"),
    tables="tables:of_levels",
)
