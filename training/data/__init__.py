"""Image data: arrays to learn from, and the streams that training reads."""

from training.data.images import ImageData, load
from training.data.pipeline import (
    evaluation_batches,
    steps_per_epoch,
    training_batches,
)
from training.data.split import Split

__all__ = [
    "ImageData",
    "Split",
    "evaluation_batches",
    "load",
    "steps_per_epoch",
    "training_batches",
]
