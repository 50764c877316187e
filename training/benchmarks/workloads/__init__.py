"""What the benchmarks solve: a transformer layer, a convolutional block, an MLP."""

from .conv_block_cell import ConvBlockCell
from .tiny_mlp_cell import TinyMLPCell
from .transformer_layer_cell import TransformerLayerCell
from .workload import Workload, build

__all__ = [
    "ConvBlockCell",
    "TinyMLPCell",
    "TransformerLayerCell",
    "Workload",
    "build",
]
