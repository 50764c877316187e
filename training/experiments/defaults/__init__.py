"""Does a plain `DEQ(cell)` train? Small tasks against the explicit network.

Each task is learned by the same cell as an equilibrium layer with the library's
defaults and as its explicit weight-tied twin, a network of some layers that is
differentiated by backpropagation.

The ten tasks cover each kind of state (vectors, sequences, images), of cell (a dense
layer, a residual block, the transformers of KerasHub and of the library, Keras' GRU, a
functional model of convolutions), of head (pooled, with positions, at every position)
and of difficulty (learned at once, slow to converge, information must travel, learned
late). All cells are the library's or come from `cell_from`.
"""

from ...registry import Experiment, Score
from .schema import DefaultsConfig

EXPERIMENT = Experiment(
    DefaultsConfig,
    "job:DefaultsJob",
    Score("score", "test score [%]", 1, ".2f"),
    tables="tables:of_tasks",
)
