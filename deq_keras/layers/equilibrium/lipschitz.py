"""Lipschitz constants of dense layers."""

from typing import Any

import keras
from keras import ops

from deq_keras.core.structure import at_least_float32
from deq_keras.layers.normalization import (
    SpectrallyNormalizedDense,
    WeightNormalizedDense,
)

# The layers whose map is `activation(inputs @ kernel + bias)`.
DENSE_LAYERS = (keras.layers.Dense, SpectrallyNormalizedDense, WeightNormalizedDense)

# The largest |s'| of activations s.
_SLOPES = {
    keras.activations.linear: 1.0,
    keras.activations.relu: 1.0,
    keras.activations.leaky_relu: 1.0,
    keras.activations.elu: 1.0,
    keras.activations.hard_tanh: 1.0,
    keras.activations.tanh: 1.0,
    keras.activations.softsign: 1.0,
    keras.activations.softplus: 1.0,
    keras.activations.sigmoid: 1 / 4,
}

# Each Gram step halves the logarithm of the excess of the bound, which is at most
# rank^(1 / 2^13) after twelve of them: 0.09 % for 1,024 units.
_GRAM_STEPS = 12


def of_dense(layer: Any, activation: Any, kernel: Any = None) -> Any:
    """Returns a Lipschitz constant of a dense layer in its inputs.

    Args:
        layer: One of `DENSE_LAYERS`.
        activation: Function after it.
        kernel: Tensor that replaces the kernel of the layer. Defaults to `None`.

    Returns:
        Scalar tensor, or `None` if the slope of the activation or the kernel is not
        known.
    """
    slope = _SLOPES.get(activation)
    if slope is None or layer.quantization_mode is not None:
        return None
    return slope * spectral_norm_bound(layer.kernel if kernel is None else kernel)


def spectral_norm_bound(matrix: Any) -> Any:
    """Returns an upper bound of the spectral norm of a matrix, a scalar tensor.

    Computes the Frobenius norm of G after several steps G <- G^T G, which bounds the
    norm from above at every step. A power iteration would bound it from below. Every
    export format supports these products, but not a singular value decomposition.

    Args:
        matrix: Tensor `(rows, columns)`.

    Reference:

    - Delattre, Barthelemy, Araujo and Allauzen (2023), "Efficient bound of Lipschitz
      constant for convolutional layers by Gram iteration".
    """
    gram = at_least_float32(matrix)
    log_norm, power = 0.0, 1.0
    for _ in range(_GRAM_STEPS):
        # Scaling keeps the powers of large and small matrices finite.
        size = _frobenius(gram)
        log_norm += power * ops.log(size)
        gram = gram / size
        gram = ops.matmul(ops.transpose(gram), gram)
        power /= 2
    return ops.exp(log_norm + power * ops.log(_frobenius(gram)))


def _frobenius(matrix: Any) -> Any:
    smallest = 1e-30 if matrix.dtype == "float32" else 1e-250
    return ops.maximum(ops.sqrt(ops.sum(ops.square(matrix))), smallest)
