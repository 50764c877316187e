"""Equilibrium layers and what their cells are made of."""

from deq_keras.layers.equilibrium import DEQ, DenseCell, EquilibriumCell, SolveScope
from deq_keras.layers.language import (
    AdaptiveEmbedding,
    AdaptiveSoftmax,
    MixtureSoftmax,
    RelativeAttention,
    SegmentMemory,
    TransformerCell,
    TransformerStack,
    TransformerXLLayer,
    TrellisCell,
    TrellisStack,
)
from deq_keras.layers.monotone import (
    MonotoneCell,
    MonotoneConvCell,
    MonotoneDenseCell,
    MonotoneMultiscaleCell,
)
from deq_keras.layers.normalization import (
    GroupNormalization,
    LayerNormalization,
    WeightNormalizedConv1D,
    WeightNormalizedConv2D,
    WeightNormalizedDense,
)
from deq_keras.layers.reasoning import (
    AttentionCell,
    BoardEmbedding,
    MixerCell,
    RecallCell,
)
from deq_keras.layers.variational_dropout import VariationalDropout
from deq_keras.layers.vision import (
    BottleneckBlock,
    ConvolutionUnit,
    MultiscaleCell,
    MultiscaleClassificationHead,
    MultiscaleFusion,
    MultiscaleSegmentationHead,
    MultiscaleStem,
    ResidualBlockCell,
    SymmetricConv2D,
)

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "AttentionCell",
    "BoardEmbedding",
    "BottleneckBlock",
    "ConvolutionUnit",
    "DEQ",
    "DenseCell",
    "EquilibriumCell",
    "GroupNormalization",
    "LayerNormalization",
    "MixerCell",
    "MixtureSoftmax",
    "MonotoneCell",
    "MonotoneConvCell",
    "MonotoneDenseCell",
    "MonotoneMultiscaleCell",
    "MultiscaleCell",
    "MultiscaleClassificationHead",
    "MultiscaleFusion",
    "MultiscaleSegmentationHead",
    "MultiscaleStem",
    "RecallCell",
    "RelativeAttention",
    "ResidualBlockCell",
    "SegmentMemory",
    "SolveScope",
    "SymmetricConv2D",
    "TransformerCell",
    "TransformerStack",
    "TransformerXLLayer",
    "TrellisCell",
    "TrellisStack",
    "VariationalDropout",
    "WeightNormalizedConv1D",
    "WeightNormalizedConv2D",
    "WeightNormalizedDense",
]
