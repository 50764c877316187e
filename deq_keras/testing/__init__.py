"""Checks that every plug-in must pass: cells, solvers, gradients and regularizers.

Each check raises an error that names the first property that fails. They need no test
framework.
"""

from deq_keras.testing.cell import check_cell
from deq_keras.testing.components import (
    check_gradient,
    check_regularizer,
    check_solver,
)

__all__ = ["check_cell", "check_gradient", "check_regularizer", "check_solver"]
