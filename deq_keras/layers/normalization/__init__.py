"""Normalization of activations and weights with correct second derivatives."""

from deq_keras.layers.normalization.group_normalization import GroupNormalization
from deq_keras.layers.normalization.layer_normalization import LayerNormalization
from deq_keras.layers.normalization.spectral_normalization import (
    SpectrallyNormalizedConv2D,
    SpectrallyNormalizedDense,
)
from deq_keras.layers.normalization.weight_normalization import (
    WeightNormalizedConv1D,
    WeightNormalizedConv2D,
    WeightNormalizedDense,
)

__all__ = [
    "GroupNormalization",
    "LayerNormalization",
    "SpectrallyNormalizedConv2D",
    "SpectrallyNormalizedDense",
    "WeightNormalizedConv1D",
    "WeightNormalizedConv2D",
    "WeightNormalizedDense",
]
