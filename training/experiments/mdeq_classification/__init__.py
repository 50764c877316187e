"""A multiscale DEQ that classifies images."""

from ...registry import ACCURACY, Experiment
from .schema import MDEQClassificationConfig

EXPERIMENT = Experiment(MDEQClassificationConfig, "job:MDEQJob", ACCURACY)
