"""Operators that measure images, and cells that reconstruct them."""

from deq_keras.layers.imaging.global_operators import (
    FourierSampling,
    MatrixOperator,
    RadonTransform,
)
from deq_keras.layers.imaging.image_denoiser import ImageDenoiser
from deq_keras.layers.imaging.linear_operator import LinearOperator
from deq_keras.layers.imaging.pixel_operators import Blur, Downsampling, Inpainting
from deq_keras.layers.imaging.reconstruction_cells import (
    HalfQuadraticCell,
    ProximalGradientCell,
)

__all__ = [
    "Blur",
    "Downsampling",
    "FourierSampling",
    "HalfQuadraticCell",
    "ImageDenoiser",
    "Inpainting",
    "LinearOperator",
    "MatrixOperator",
    "ProximalGradientCell",
    "RadonTransform",
]
