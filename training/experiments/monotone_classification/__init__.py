"""A monotone operator network that classifies images.

Winston and Kolter (2020), "Monotone operator equilibrium networks", section 6.
"""

from ...registry import ACCURACY, Experiment
from .schema import MonotoneClassificationConfig

EXPERIMENT = Experiment(MonotoneClassificationConfig, "job:MonotoneJob", ACCURACY)
