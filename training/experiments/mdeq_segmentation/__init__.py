"""A multiscale DEQ that classifies every pixel."""

from ...registry import Experiment, Score
from .schema import MDEQSegmentationConfig

EXPERIMENT = Experiment(
    MDEQSegmentationConfig,
    "job:MDEQSegmentationJob",
    Score("mean_iou", "mean IoU [%]", 100, ".1f"),
)
