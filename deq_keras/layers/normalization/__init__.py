"""Normalization of activations and weights with correct second derivatives."""

from deq_keras.layers.normalization.group_normalization import GroupNormalization
from deq_keras.layers.normalization.layer_normalization import LayerNormalization
from deq_keras.layers.normalization.spectrally_normalized import (
    SpectrallyNormalizedConv2D,
    SpectrallyNormalizedDense,
)
from deq_keras.layers.normalization.weight_normalized_conv import (
    WeightNormalizedConv1D,
    WeightNormalizedConv2D,
)
from deq_keras.layers.normalization.weight_normalized_dense import WeightNormalizedDense

__all__ = [
    "GroupNormalization",
    "LayerNormalization",
    "SpectrallyNormalizedConv2D",
    "SpectrallyNormalizedDense",
    "WeightNormalizedConv1D",
    "WeightNormalizedConv2D",
    "WeightNormalizedDense",
]
