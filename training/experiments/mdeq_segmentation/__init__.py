"""Trains the variants of a multiscale DEQ for segmentation and compares them."""

from training import variants
from training.config import variant
from training.data import segmentation
from training.experiments.mdeq_segmentation.job import MDEQSegmentationJob


def run(config, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        config: the `MDEQSegmentationConfig`.
        directory: its `WorkDirectory`. What is already finished in it is kept.
    """
    variants.run({name: job(directory, name) for name in config.variants}, directory)


def job(directory, name):
    """Returns the `MDEQSegmentationJob` of a variant."""
    config = variant(directory.config, name)
    data = segmentation.load(config.data)
    return MDEQSegmentationJob(config, data, directory.folder(name))
