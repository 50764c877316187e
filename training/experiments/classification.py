"""Trains the variants of an image classifier and compares them.

The shape of Table 3 of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization": accuracy at fixed budgets of function evaluations.
"""

from training import data as datasets
from training import variants
from training.classification_job import ClassificationJob
from training.config import variant


def run(config, directory):
    """Trains, measures and compares all variants; prints and saves the report.

    Args:
        config: the `ClassificationConfig`.
        directory: its `WorkDirectory`. What is already finished in it is kept.
    """
    jobs = {name: job(directory, name) for name in config.variants}
    variants.run(jobs, directory)


def job(directory, name):
    """Returns the `ClassificationJob` of a variant."""
    config = variant(directory.config, name)
    return ClassificationJob(config, datasets.load(config.data))
