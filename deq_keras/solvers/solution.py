"""The result of a fixed-point solver."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.core.nonfinite import DIVERGED
from deq_keras.core.structure import Nest

__all__ = [
    "CONVERGED",
    "DIVERGED",
    "MAX_ITER",
    "UNCHANGED",
    "Solution",
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
        states: Tuple of `Solution`s along the solve, of which the last is this one;
            see `SolveRequest.num_states`. Their traces are empty. An empty tuple if
            `num_states` is `None`.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor
    states: tuple["Solution", ...] = ()
