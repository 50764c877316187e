"""Images with a class for every pixel, and the streams training reads."""

from ..pipeline import evaluation_batches, steps_per_epoch
from .data import SegmentationData, load
from .transforms import IGNORED, training_batches

__all__ = [
    "IGNORED",
    "SegmentationData",
    "evaluation_batches",
    "load",
    "steps_per_epoch",
    "training_batches",
]
