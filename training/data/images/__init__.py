"""Labelled images, in memory or on disk, and the streams training reads."""

from training.data.images.images import ImageData, load
from training.data.images.pipeline import (
    evaluation_batches,
    sample,
    steps_per_epoch,
    training_batches,
)
from training.data.images.split import Split
from training.data.images.streamed_split import StreamedSplit

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
