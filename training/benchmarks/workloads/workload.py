"""A benchmark workload: a cell with its weights, its injection and a target."""

from typing import Any, NamedTuple

import tensorflow as tf

from ..arrays import arrays
from .conv_block_cell import ConvBlockCell
from .tiny_mlp_cell import TinyMLPCell
from .transformer_layer_cell import TransformerLayerCell

_CELLS = {
    "transformer_layer": TransformerLayerCell,
    "conv_block": ConvBlockCell,
    "tiny_mlp": TinyMLPCell,
}


class Workload(NamedTuple):
    """What is solved.

    Attributes:
        name: as in `arrays.NAMES`.
        cell: a built `EquilibriumCell` that carries the workload's weights.
        injection: what the cell's `inject` takes, in its compute dtype; for the cells
            of `arrays.NAMES` a tensor like the state.
        target: nest like the state, float32 (float64 for a float64 cell).
    """

    name: str
    cell: Any
    injection: tf.Tensor
    target: Any


def build(name, dtype="float32", sizes=None, **cell_arguments):
    """Returns the workload of that name.

    Args:
        name: one of `arrays.NAMES`.
        dtype: dtype policy of the cell, such as `"float32"`, `"float64"` or
            `"mixed_bfloat16"`. Defaults to `"float32"`.
        sizes: dict of sizes for `arrays.arrays`. `None`: the benchmark's.
        **cell_arguments: of the cell, where they differ from the benchmark's.
    """
    values = arrays(name, **(sizes or {}))
    cell = _CELLS[name](dtype=dtype, **cell_arguments)
    shape = values.injection.shape
    cell.build(shape, shape)
    cell.set_weights(list(values.weights.values()))
    return Workload(
        name,
        cell,
        injection=tf.constant(values.injection, cell.compute_dtype),
        target=tf.constant(values.target, cell.variable_dtype),
    )
