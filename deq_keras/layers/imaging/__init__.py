"""Operators that measure images."""

from deq_keras.layers.imaging.global_operators import (
    FourierSampling,
    MatrixOperator,
    RadonTransform,
)
from deq_keras.layers.imaging.linear_operator import LinearOperator
from deq_keras.layers.imaging.pixel_operators import Blur, Downsampling, Inpainting

__all__ = [
    "Blur",
    "Downsampling",
    "FourierSampling",
    "Inpainting",
    "LinearOperator",
    "MatrixOperator",
    "RadonTransform",
]
