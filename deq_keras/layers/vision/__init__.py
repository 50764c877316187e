"""Layers of vision models: multiscale and residual cells, stems, heads."""

from deq_keras.layers.vision.convolution_units import (
    BottleneckBlock,
    ConvolutionUnit,
    MultiscaleStem,
)
from deq_keras.layers.vision.multiscale_cell import MultiscaleCell
from deq_keras.layers.vision.multiscale_fusion import MultiscaleFusion
from deq_keras.layers.vision.multiscale_heads import (
    MultiscaleClassificationHead,
    MultiscaleSegmentationHead,
)
from deq_keras.layers.vision.residual_block_cell import ResidualBlockCell
from deq_keras.layers.vision.symmetric_conv import SymmetricConv2D

__all__ = [
    "BottleneckBlock",
    "ConvolutionUnit",
    "MultiscaleCell",
    "MultiscaleClassificationHead",
    "MultiscaleFusion",
    "MultiscaleSegmentationHead",
    "MultiscaleStem",
    "ResidualBlockCell",
    "SymmetricConv2D",
]
