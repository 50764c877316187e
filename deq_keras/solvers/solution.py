"""What a fixed-point solver returns."""

from typing import Any, NamedTuple

import tensorflow as tf

CONVERGED = 0
MAX_ITER = 1
DIVERGED = 2


class Solution(NamedTuple):
    """The result of `FixedPointSolver.solve`, per sample.

    Attributes:
        value: nest like the state. `f(point)`, known without another evaluation.
        point: nest like the state. The best iterate: the one with the smallest
            residual (with `tol=None` the last finite one). The initial state where
            no evaluation was finite.
        residual: float tensor `(batch,)`. The residual at `point`, relative or
            absolute as the solver's `stop_mode` says; infinite where no evaluation
            was finite.
        status: int32 tensor `(batch,)`: `CONVERGED` (0), `MAX_ITER` (1: the budget
            ran out) or `DIVERGED` (2: an evaluation was not finite).
        num_evaluations: int32 tensor `(batch,)`. Evaluations that each sample needed.
        batch_evaluations: int32 scalar. Evaluations that the loop ran.
        trace: float tensor `(max_iter, batch)`. The residual of every evaluation,
            NaN after a sample's last.
    """

    value: Any
    point: Any
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor
