"""The report of an implicit gradient's backward pass about both solves."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.core import nonfinite
from deq_keras.core.linearization import Linearization
from deq_keras.core.structure import Nest, StateStructure, row_norms
from deq_keras.solvers import Solution


class AdjointReport(NamedTuple):
    """An adjoint solve, and estimates of the errors of the loss and the gradient.

    Attributes:
        solution: The `Solution` y of the adjoint equation.
        loss_error: Float tensor `(batch,)`. Estimate of the loss at the equilibrium
            minus the loss of the sample. Exact if f and the loss are linear and the
            adjoint is solved.
        forward_error: Float scalar tensor in [0, 1]. Estimate of the relative error
            that the forward solve causes in the gradient: |z - z*| / |z*|, weighted by
            the norms of the adjoints.
        adjoint_error: Float scalar tensor in [0, 1]. The same for the adjoint solve.
    """

    solution: Solution
    loss_error: tf.Tensor
    forward_error: tf.Tensor
    adjoint_error: tf.Tensor


def adjoint_report(
    linearization: Linearization, cotangent: Nest, solution: Solution
) -> AdjointReport:
    """Returns the `AdjointReport` of an adjoint solve, without further products.

    With r = f(z) - z, the equilibrium is z* = z + (I - J)^-1 r + O(r^2). The layer
    returns f(z), with the cotangent c, and y = (I - J^T)^-1 c. Therefore

        L(z*) - L(f(z)) = c^T (z* - f(z)) + O(r^2) = (y - c)^T r + O(r^2)

    The error can exceed the residual by a factor of up to the norm of (I - J)^-1. The
    last product of the solve yields two lower bounds of this norm or of the growth of
    r:

        |y| / |(I - J^T) y|    and    |y^T r| / |y^T (I - J) r|

    The second is exact if r is an eigenvector, as after many plain steps.

    Args:
        linearization: The `Linearization` of f at z.
        cotangent: Nest c, in the precision of the solver.
        solution: The `Solution` of the adjoint equation of c.

    Reference:

    - Becker and Rannacher (2001), "An optimal control approach to a posteriori error
      estimation in finite element methods": the dual-weighted residual.
    """
    structure = StateStructure(cotangent)
    point, value, constant, last, adjoint = (
        tf.stop_gradient(structure.to_matrix(state))
        for state in (
            linearization.point,
            linearization.value,
            cotangent,
            solution.point,
            solution.value,
        )
    )
    residual = value - point
    missing = adjoint - last  # c + J^T y - y
    growth = _growth(last, constant - missing, residual)
    weight = row_norms(adjoint)
    return AdjointReport(
        solution,
        _dot(adjoint - constant, residual),
        _mean(_fraction(growth * row_norms(residual), row_norms(value)), weight),
        _mean(_fraction(growth * row_norms(missing), weight), weight),
    )


def _growth(adjoint: tf.Tensor, image: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
    """Returns an estimate of the norm of (I - J)^-1 for each sample.

    Args:
        adjoint: Tensor y, `(batch, features)`.
        image: Tensor (I - J^T) y like it.
        residual: Tensor r like it.
    """
    of_adjoint = tf.math.divide_no_nan(row_norms(adjoint), row_norms(image))
    # The ratio of a single sample would be noise if r is orthogonal to the image.
    squares = [_finite_total(_dot(state, residual) ** 2) for state in (adjoint, image)]
    of_residual = tf.sqrt(tf.math.divide_no_nan(*squares))
    return tf.maximum(of_adjoint, of_residual)


def _fraction(error: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns an error relative to the exact result. `size` is the computed norm."""
    return tf.math.divide_no_nan(error, size + error)


def _mean(values: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the weighted mean of the finite values, or NaN without any."""
    weight = tf.where(tf.math.is_finite(values), weight, 0.0)
    return _finite_total(values * weight) / _finite_total(weight)


def _finite_total(values: tf.Tensor) -> tf.Tensor:
    return nonfinite.finite_total(values, values.dtype)[0]


def _dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(a * b, axis=1)  # (B,)
