"""Trains the variants of a multiscale DEQ for classification and compares them."""

from training import data as datasets
from training import variants
from training.config import variant
from training.experiments.mdeq_classification.job import MDEQJob


def run(config, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        config: the `MDEQClassificationConfig`.
        directory: its `WorkDirectory`. What is already finished in it is kept.
    """
    variants.run({name: job(directory, name) for name in config.variants}, directory)


def job(directory, name):
    """Returns the `MDEQJob` of a variant."""
    config = variant(directory.config, name)
    return MDEQJob(config, datasets.load(config.data))
