"""A multiscale DEQ that finds the class of every pixel."""

from training.experiments.mdeq_segmentation.schema import MDEQSegmentationConfig
from training.registry import Experiment, Score

EXPERIMENT = Experiment(
    MDEQSegmentationConfig,
    "job:MDEQSegmentationJob",
    Score("mean_iou", "mean IoU [%]", 100, ".1f"),
)
