"""A scalar equilibrium model of a curve, with and without Jacobian regularisation.

The synthetic study of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization", figure 5.
"""

from training.registry import Study
from training.studies.synthetic.schema import SyntheticConfig

EXPERIMENT = Study(SyntheticConfig, "study:run")
