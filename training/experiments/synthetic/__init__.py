"""A scalar equilibrium model of a curve, with and without Jacobian regularisation.

The synthetic study of Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian
Regularization", figure 5.
"""

from training.experiments.synthetic.cell import ScalarCell
from training.experiments.synthetic.study import run

__all__ = ["ScalarCell", "run"]
