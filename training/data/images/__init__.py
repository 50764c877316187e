"""Labeled images, in memory or on disk, and the streams training reads."""

from ..pipeline import evaluation_batches, sample, steps_per_epoch, training_batches
from .images import ImageData, decode_once, load
from .transforms import in_memory

__all__ = [
    "ImageData",
    "decode_once",
    "evaluation_batches",
    "in_memory",
    "load",
    "sample",
    "steps_per_epoch",
    "training_batches",
]
