"""What a fixed-point solver returns."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.faults import DIVERGED
from deq_keras.structure import Nest

__all__ = ["CONVERGED", "DIVERGED", "MAX_ITER", "UNCHANGED", "Solution"]

CONVERGED = 0
MAX_ITER = 1
UNCHANGED = 3


class Solution(NamedTuple):
    """The result of `FixedPointSolver.solve`, per sample.

    Attributes:
        value: Nest like the state. `f(point)`, known without another evaluation.
        point: Nest like the state. The best iterate: the one with the smallest
            residual (with `tol=None` the last finite one). The initial state where
            no evaluation was finite.
        residual: Float tensor `(batch,)`. The residual at `point`, relative or
            absolute as the solver's `stop_mode` says; infinite where no evaluation
            was finite.
        status: Int32 tensor `(batch,)`: `CONVERGED` (0), `MAX_ITER` (1: the budget
            ran out), `DIVERGED` (2: an evaluation was not finite) or `UNCHANGED` (3:
            its answer stood; see `UnchangedAnswer`).
        num_evaluations: Int32 tensor `(batch,)`. Evaluations that each sample needed.
        batch_evaluations: Int32 scalar. Evaluations that the loop ran.
        trace: Float tensor `(max_iter, batch)`. The residual of every evaluation,
            NaN after a sample's last.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor
