"""Does a plain `DEQ(cell)` train? Small tasks against the explicit network.

Each task is learned by the same cell as an equilibrium layer with the library's
defaults and as its explicit weight-tied twin, a network of some layers that is
differentiated by backpropagation.

The ten tasks have one of each: state (vectors, sequences, images), cell (dense,
residual block, KerasHub's and the library's transformer, Keras' GRU, a functional model
of convolutions), head (pooled, with positions, at every position) and difficulty
(learned at once, converges slowly, information must travel, learned late). All cells
are the library's or come from `cell_from`.
"""

from ...registry import Experiment, Score
from .schema import DefaultsConfig

EXPERIMENT = Experiment(
    DefaultsConfig,
    "job:DefaultsJob",
    Score("score", "test score [%]", 1, ".2f"),
    tables="tables:of_tasks",
)
