"""The result of a fixed-point solver."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.core.nonfinite import DIVERGED
from deq_keras.core.structure import Nest

__all__ = [
    "CONVERGED",
    "DIVERGED",
    "MAX_ITER",
    "Solution",
]

CONVERGED = 0
MAX_ITER = 1


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
            exhausted) or `DIVERGED` (2: an evaluation was non-finite).
        num_evaluations: Int32 tensor `(batch,)`. Number of evaluations of each sample.
        batch_evaluations: Int32 scalar. Number of evaluations in the loop.
        trace: Float tensor `(max_iter, batch)`. Residual of every evaluation, NaN after
            a sample's last. `(0, batch)` if the request disables the trace. The
            residual depends on the solver's `stop_mode`. With `tol=0.0`, the iterates
            do not. `deq_keras.diagnostics.residual_traces` returns both the absolute
            and the relative residual.
    """

    value: Nest
    point: Nest
    residual: tf.Tensor
    status: tf.Tensor
    num_evaluations: tf.Tensor
    batch_evaluations: tf.Tensor
    trace: tf.Tensor

    @property
    def best_evaluation(self) -> tf.Tensor:
        """The number of the evaluation with the smallest residual, from 1.

        Int32 tensor `(batch,)`. 0 if every evaluation was non-finite.

        Raises:
            ValueError: If the trace is empty.
        """
        if self.trace.shape[0] == 0:
            raise ValueError(
                "`best_evaluation` needs a trace. Solve with a request whose "
                "LoopOptions have records_trace=True. Received: an empty trace."
            )
        is_finite = tf.math.is_finite(self.trace)
        infinite = tf.constant(float("inf"), self.trace.dtype)
        first = tf.argmin(tf.where(is_finite, self.trace, infinite), 0, tf.int32)
        return tf.where(tf.reduce_any(is_finite, axis=0), first + 1, 0)
