"""The result of a fixed-point solver."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.core.nonfinite import DIVERGED
from deq_keras.core.structure import Nest, StateStructure, squared_norm

__all__ = [
    "CONVERGED",
    "DIVERGED",
    "MAX_ITER",
    "UNCHANGED",
    "Solution",
    "estimated_error",
]

CONVERGED = 0
MAX_ITER = 1
UNCHANGED = 3


class Solution(NamedTuple):
    """The result of `FixedPointSolver.solve`, per sample.

    Attributes:
        value: Nest like the state. `f(point)`, without an additional evaluation.
        point: Nest like the state. The iterate with the smallest residual or, with
            `tol=None`, the last finite iterate. The initial state if every evaluation
            was non-finite.
        residual: Float tensor `(batch,)`. Residual at `point`, as defined by the
            solver's `stop_mode`. Infinite if every evaluation was non-finite.
        status: Int32 tensor `(batch,)`. `CONVERGED` (0), `MAX_ITER` (1: the budget is
            exhausted), `DIVERGED` (2: an evaluation was non-finite) or `UNCHANGED` (3:
            the readout stopped changing; see `UnchangedAnswer`).
        num_evaluations: Int32 tensor `(batch,)`. Number of evaluations of each sample.
        batch_evaluations: Int32 scalar. Number of evaluations in the loop.
        trace: Float tensor `(max_iter, batch)`. Residual of every evaluation, NaN after
            a sample's last. `(0, batch)` if the request disables the trace.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor


# Number of evaluations over which the convergence rate is measured, and its bound.
_WINDOW = 4
_LARGEST_RATE = 0.999


def estimated_error(solution: Solution) -> tf.Tensor:
    """Returns an estimate of |z - z*| / |z*| for each sample, `(batch,)`, at most 1.

    If residuals shrink by a factor rho per evaluation, the remaining steps sum to
    rho / (1 - rho) times the last one. rho is measured over the last evaluations, so
    that a slow solve has a large estimate even at a small residual.

    Args:
        solution: A `Solution`.
    """
    structure = StateStructure(solution.value)
    value = structure.to_matrix(solution.value)
    step = squared_norm(value - structure.to_matrix(solution.point))[:, 0]
    size = squared_norm(value)[:, 0]
    residual = tf.sqrt(step / tf.where(size > 0, size, 1.0))
    last = tf.maximum(solution.num_evaluations - 1, 0)
    window = tf.minimum(last, _WINDOW)
    shrinkage = _at(solution.trace, last) / _at(solution.trace, last - window)
    exponent = 1.0 / tf.cast(tf.maximum(window, 1), shrinkage.dtype)
    rate = tf.clip_by_value(shrinkage**exponent, 0.0, _LARGEST_RATE)
    return tf.minimum(residual * rate / (1.0 - rate), 1.0)


def _at(trace: tf.Tensor, evaluations: tf.Tensor) -> tf.Tensor:
    """Returns each sample's residual at its own evaluation index, `(batch,)`."""
    samples = tf.range(tf.shape(evaluations)[0])
    return tf.gather_nd(trace, tf.stack([evaluations, samples], axis=1))
