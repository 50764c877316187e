"""Cells with a monotone operator, whose equilibrium always exists and is unique."""

from deq_keras.layers.monotone.monotone_cell import MonotoneCell
from deq_keras.layers.monotone.monotone_dense_cell import MonotoneDenseCell
from deq_keras.layers.monotone.monotone_image_cells import (
    MonotoneConvCell,
    MonotoneMultiscaleCell,
)

__all__ = [
    "MonotoneCell",
    "MonotoneConvCell",
    "MonotoneDenseCell",
    "MonotoneMultiscaleCell",
]
