"""Equilibrium layers, and layers for their cells."""

from deq_keras.layers import (
    imaging,
    language,
    monotone,
    normalization,
    reasoning,
    vision,
)
from deq_keras.layers.equilibrium import (
    DEQ,
    DenseCell,
    EquilibriumCell,
    SolveScope,
    cell_from,
)
from deq_keras.layers.imaging import *
from deq_keras.layers.language import *
from deq_keras.layers.monotone import *
from deq_keras.layers.normalization import *
from deq_keras.layers.reasoning import *
from deq_keras.layers.variational_dropout import VariationalDropout
from deq_keras.layers.vision import *

__all__ = [
    "DEQ",
    "DenseCell",
    "EquilibriumCell",
    "SolveScope",
    "VariationalDropout",
    "cell_from",
]
__all__ += imaging.__all__
__all__ += language.__all__
__all__ += monotone.__all__
__all__ += normalization.__all__
__all__ += reasoning.__all__
__all__ += vision.__all__
