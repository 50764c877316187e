"""Labelled images, in memory or on disk, and the streams training reads."""

from .images import ImageData, load
from .pipeline import (
    evaluation_batches,
    sample,
    steps_per_epoch,
    training_batches,
)
from .split import Split
from .streamed_split import StreamedSplit

__all__ = [
    "ImageData",
    "Split",
    "StreamedSplit",
    "evaluation_batches",
    "load",
    "sample",
    "steps_per_epoch",
    "training_batches",
]
