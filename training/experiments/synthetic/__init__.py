"""A scalar equilibrium model of a curve, with and without Jacobian regularization.

The synthetic study of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization", figure 5.
"""

from ...registry import Experiment, Score
from .schema import SyntheticConfig

EXPERIMENT = Experiment(
    SyntheticConfig,
    "job:SyntheticJob",
    Score("rmse", "validation RMSE", 1, ".4f"),
    tables="tables:of_variants",
)
