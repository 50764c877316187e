"""An image classifier around one equilibrium cell.

The shape of Table 3 of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization": accuracy at fixed budgets of function evaluations.
"""

from ...registry import ACCURACY, Experiment
from .schema import ClassificationConfig

EXPERIMENT = Experiment(ClassificationConfig, "job:ClassificationJob", ACCURACY)
