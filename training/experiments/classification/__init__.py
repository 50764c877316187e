"""Classify images with a single-scale DEQ, a multiscale DEQ or a monotone network.

Measures accuracy at fixed budgets of function evaluations, as in Table 3 of Bai et al.
(2021), "Stabilizing Equilibrium Models by Jacobian Regularization".
"""

from ...registry import ACCURACY, Experiment
from .schema import ClassificationConfig

EXPERIMENT = Experiment(ClassificationConfig, "job:ClassificationJob", ACCURACY)
