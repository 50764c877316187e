"""Images with a class for every pixel, and the streams training reads."""

from training.data.segmentation.data import SegmentationData, load
from training.data.segmentation.memory_split import MemorySplit
from training.data.segmentation.pipeline import (
    evaluation_batches,
    steps_per_epoch,
    training_batches,
)
from training.data.segmentation.sharded_split import ShardedSplit

__all__ = [
    "MemorySplit",
    "SegmentationData",
    "ShardedSplit",
    "evaluation_batches",
    "load",
    "steps_per_epoch",
    "training_batches",
]
