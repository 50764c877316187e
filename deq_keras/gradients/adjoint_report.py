"""What the backward pass of an implicit gradient reports about the solves."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.core.linearization import Linearization
from deq_keras.core.structure import Nest, StateStructure
from deq_keras.solvers import Solution


class AdjointReport(NamedTuple):
    """An adjoint solve, and the error of the loss that follows from it.

    Attributes:
        solution: The `Solution` y of the adjoint equation.
        loss_error: Float tensor `(batch,)`. Estimate of the loss at the equilibrium
            minus the loss of the sample. Exact if f and the loss are linear and the
            adjoint is solved.
    """

    solution: Solution
    loss_error: tf.Tensor


def adjoint_report(
    linearization: Linearization, cotangent: Nest, solution: Solution
) -> AdjointReport:
    """Returns the `AdjointReport` of an adjoint solve, without further products.

    With r = f(z) - z, the equilibrium is z* = z + (I - J)^-1 r + O(r^2). The layer
    returns f(z), with the cotangent c, and y = (I - J^T)^-1 c. Therefore

        L(z*) - L(f(z)) = c^T (z* - f(z)) + O(r^2) = (y - c)^T r + O(r^2)

    Args:
        linearization: The `Linearization` of f at z.
        cotangent: Nest c, in the precision of the solver.
        solution: The `Solution` of the adjoint equation of c.

    Reference:

    - Becker and Rannacher (2001), "An optimal control approach to a posteriori error
      estimation in finite element methods": the dual-weighted residual.
    """
    structure = StateStructure(cotangent)
    point, value, constant, adjoint = map(
        structure.to_matrix,
        (linearization.point, linearization.value, cotangent, solution.value),
    )
    loss_error = tf.reduce_sum((adjoint - constant) * (value - point), axis=1)
    return AdjointReport(solution, tf.stop_gradient(loss_error))
