"""Image restorers: models that reconstruct images from measurements."""

from deq_keras.models.image_restorer.equivariant_imaging_model import (
    EquivariantImagingModel,
)
from deq_keras.models.image_restorer.image_restorer import ImageRestorer
from deq_keras.models.image_restorer.image_restorer_backbone import (
    ImageRestorerBackbone,
)
from deq_keras.models.image_restorer.image_restorer_preprocessor import (
    ImageRestorerPreprocessor,
)

__all__ = [
    "EquivariantImagingModel",
    "ImageRestorer",
    "ImageRestorerBackbone",
    "ImageRestorerPreprocessor",
]
