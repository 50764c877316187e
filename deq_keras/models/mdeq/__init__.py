"""Multiscale deep equilibrium models for images."""

from deq_keras.models.mdeq.mdeq_backbone import MDEQBackbone
from deq_keras.models.mdeq.mdeq_image_classifier import MDEQImageClassifier
from deq_keras.models.mdeq.mdeq_image_segmenter import MDEQImageSegmenter
from deq_keras.models.mdeq.mdeq_preprocessor import (
    MDEQImageClassifierPreprocessor,
    MDEQImageConverter,
    MDEQImageSegmenterPreprocessor,
)

__all__ = [
    "MDEQBackbone",
    "MDEQImageClassifier",
    "MDEQImageClassifierPreprocessor",
    "MDEQImageConverter",
    "MDEQImageSegmenter",
    "MDEQImageSegmenterPreprocessor",
]
