"""The equilibrium layer, its cells, its solve and their checks."""

from deq_keras.layers.equilibrium.cell import EquilibriumCell
from deq_keras.layers.equilibrium.cell_problem import CellFunction, declares
from deq_keras.layers.equilibrium.dense_cell import DenseCell
from deq_keras.layers.equilibrium.deq import DEQ
from deq_keras.layers.equilibrium.layer_cell import cell_from
from deq_keras.layers.equilibrium.solve_scope import SolveScope

__all__ = [
    "CellFunction",
    "DEQ",
    "DenseCell",
    "EquilibriumCell",
    "SolveScope",
    "cell_from",
    "declares",
]
