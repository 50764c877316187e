"""Lipschitz constants of dense layers."""

import math
from collections.abc import Callable
from typing import Any

import keras

from deq_keras.layers.normalization import (
    SpectrallyNormalizedDense,
    WeightNormalizedDense,
)
from deq_keras.layers.normalization.spectral_normalization import spectral_norm_bound

# The layers whose map is `activation(inputs @ kernel + bias)`.
_DENSE_LAYERS = (keras.layers.Dense, SpectrallyNormalizedDense, WeightNormalizedDense)

# The largest |s'| of activations s.
_SLOPES = (
    (keras.activations.linear, 1.0),
    (keras.activations.relu, 1.0),
    (keras.activations.leaky_relu, 1.0),
    (keras.activations.elu, 1.0),
    (keras.activations.hard_tanh, 1.0),
    (keras.activations.tanh, 1.0),
    (keras.activations.softsign, 1.0),
    (keras.activations.softplus, 1.0),
    (keras.activations.sigmoid, 1 / 4),
)


def of_dense(layer: Any, *activations: Callable[..., Any], kernel: Any = None) -> Any:
    """Returns a Lipschitz constant of a layer in its inputs, if it is a dense layer.

    Args:
        layer: Layer.
        *activations: Further functions that are applied to its outputs.
        kernel: Tensor that replaces the kernel of the layer. Defaults to `None`.

    Returns:
        Scalar tensor. `None` if a slope is unknown, the kernel is quantized, or the
        layer is not exactly one of this module's: a subclass can apply another kernel.
    """
    if type(layer) not in _DENSE_LAYERS or "call" in vars(layer):
        return None
    functions = (layer.activation, *activations)
    # Compares by identity, because an activation can be an object without a hash.
    slopes = [
        slope for function in functions for known, slope in _SLOPES if function is known
    ]
    if len(slopes) < len(functions) or layer.quantization_mode is not None:
        return None
    kernel = layer.kernel if kernel is None else kernel
    return math.prod(slopes) * spectral_norm_bound(kernel)
