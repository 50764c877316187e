"""Equilibrium layers and what their cells are made of."""

from deq_keras.layers.adaptive_embedding import AdaptiveEmbedding
from deq_keras.layers.adaptive_softmax import AdaptiveSoftmax
from deq_keras.layers.bottleneck_block import BottleneckBlock
from deq_keras.layers.cell import EquilibriumCell
from deq_keras.layers.convolution_unit import ConvolutionUnit
from deq_keras.layers.dense_cell import DenseCell
from deq_keras.layers.deq import DEQ
from deq_keras.layers.group_normalization import GroupNormalization
from deq_keras.layers.layer_normalization import LayerNormalization
from deq_keras.layers.multiscale_cell import MultiscaleCell
from deq_keras.layers.multiscale_classification_head import MultiscaleClassificationHead
from deq_keras.layers.multiscale_fusion import MultiscaleFusion
from deq_keras.layers.multiscale_segmentation_head import MultiscaleSegmentationHead
from deq_keras.layers.multiscale_stem import MultiscaleStem
from deq_keras.layers.relative_attention import RelativeAttention
from deq_keras.layers.residual_block_cell import ResidualBlockCell
from deq_keras.layers.segment_memory import SegmentMemory
from deq_keras.layers.symmetric_conv import SymmetricConv2D
from deq_keras.layers.transformer_cell import TransformerCell
from deq_keras.layers.transformer_stack import TransformerStack
from deq_keras.layers.variational_dropout import VariationalDropout
from deq_keras.layers.weight_normalized_conv import (
    WeightNormalizedConv1D,
    WeightNormalizedConv2D,
)
from deq_keras.layers.weight_normalized_dense import WeightNormalizedDense

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "BottleneckBlock",
    "ConvolutionUnit",
    "DEQ",
    "DenseCell",
    "EquilibriumCell",
    "GroupNormalization",
    "LayerNormalization",
    "MultiscaleCell",
    "MultiscaleClassificationHead",
    "MultiscaleFusion",
    "MultiscaleSegmentationHead",
    "MultiscaleStem",
    "RelativeAttention",
    "ResidualBlockCell",
    "SegmentMemory",
    "SymmetricConv2D",
    "TransformerCell",
    "TransformerStack",
    "VariationalDropout",
    "WeightNormalizedConv1D",
    "WeightNormalizedConv2D",
    "WeightNormalizedDense",
]
