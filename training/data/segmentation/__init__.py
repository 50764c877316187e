"""Images with a class for every pixel, and the streams training reads."""

from ..pipeline import evaluation_batches, sample, steps_per_epoch, training_batches
from .data import SegmentationData, load
from .transforms import IGNORED

__all__ = [
    "IGNORED",
    "SegmentationData",
    "evaluation_batches",
    "load",
    "sample",
    "steps_per_epoch",
    "training_batches",
]
