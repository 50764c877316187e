"""A scalar equilibrium model of a curve, with and without Jacobian regularization.

The synthetic study of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization", figure 5.
"""

from ...registry import Study
from .schema import SyntheticConfig

EXPERIMENT = Study(SyntheticConfig, "study:run")
