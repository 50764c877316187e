"""A multiscale DEQ that classifies images."""

from training.experiments.mdeq_classification.schema import MDEQClassificationConfig
from training.registry import ACCURACY, Experiment

EXPERIMENT = Experiment(MDEQClassificationConfig, "job:MDEQJob", ACCURACY)
