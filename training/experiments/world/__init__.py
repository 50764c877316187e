"""Cells with a model of the world inside: equations, graphs, programs and markets.

Each task is learned by a cell that contains the known function, as an equilibrium layer
and unrolled for a few steps, and by a plain network without it. The test sets differ
from the training data in a known way: finer grids, larger graphs, closed roads.
"""

from ...registry import Experiment, Score
from .schema import WorldConfig

EXPERIMENT = Experiment(
    WorldConfig,
    "job:WorldJob",
    Score("error", "test error", 1, ".3f"),
    tables="tables:of_test_sets",
)
