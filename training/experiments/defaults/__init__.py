"""Does a plain `DEQ(cell)` train? Small tasks against the explicit network.

Each task is learned by the same cell as an equilibrium layer with the library's
defaults and as its explicit weight-tied twin, a network of some layers that is
differentiated by backpropagation.
"""

from ...registry import Experiment, Score
from .schema import DefaultsConfig

EXPERIMENT = Experiment(
    DefaultsConfig,
    "job:DefaultsJob",
    Score("score", "test score [%]", 1, ".2f"),
    tables="tables:of_tasks",
)
