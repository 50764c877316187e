"""Equilibrium layers and what their cells are made of."""

from deq_keras.layers.cell import EquilibriumCell
from deq_keras.layers.dense_cell import DenseCell
from deq_keras.layers.deq import DEQ
from deq_keras.layers.group_normalization import GroupNormalization
from deq_keras.layers.residual_block_cell import ResidualBlockCell
from deq_keras.layers.variational_dropout import VariationalDropout
from deq_keras.layers.weight_normalized_conv import (
    WeightNormalizedConv1D,
    WeightNormalizedConv2D,
)
from deq_keras.layers.weight_normalized_dense import WeightNormalizedDense

__all__ = [
    "DEQ",
    "DenseCell",
    "EquilibriumCell",
    "GroupNormalization",
    "ResidualBlockCell",
    "VariationalDropout",
    "WeightNormalizedConv1D",
    "WeightNormalizedConv2D",
    "WeightNormalizedDense",
]
