"""What the benchmarks solve: a transformer layer, a convolutional block, an MLP."""

from training.benchmarks.workloads.conv_block_cell import ConvBlockCell
from training.benchmarks.workloads.tiny_mlp_cell import TinyMLPCell
from training.benchmarks.workloads.transformer_layer_cell import TransformerLayerCell
from training.benchmarks.workloads.workload import Workload, build

__all__ = [
    "ConvBlockCell",
    "TinyMLPCell",
    "TransformerLayerCell",
    "Workload",
    "build",
]
