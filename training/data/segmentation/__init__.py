"""Images with a class for every pixel, and the streams training reads."""

from .data import SegmentationData, load
from .memory_split import MemorySplit
from .pipeline import (
    evaluation_batches,
    steps_per_epoch,
    training_batches,
)
from .sharded_split import ShardedSplit

__all__ = [
    "MemorySplit",
    "SegmentationData",
    "ShardedSplit",
    "evaluation_batches",
    "load",
    "steps_per_epoch",
    "training_batches",
]
