"""What one solve is asked for, beside the function."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from deq_keras.solvers.unchanged_answer import UnchangedAnswer
from deq_keras.structure import Nest


class SolveRequest(NamedTuple):
    """Where a solve starts, what it may spend, and when it stops.

    Attributes:
        initial_state: Nest of floating-point tensors `(batch, ...)`.
        max_iter: See `FixedPointSolver.solve`.
        tol: See `FixedPointSolver.solve`.
        budget: See `FixedPointSolver.solve`.
        seed: See `FixedPointSolver.solve`.
        halting: See `FixedPointSolver.solve`.
        is_usable: Boolean tensor `(batch,)`. Other samples end after one evaluation,
            with the status `DIVERGED`. `None`: all samples are usable.
        takes_last: Boolean, or Boolean scalar tensor. Whether the result is the last
            finite iterate rather than the best one. `None`: where there is no
            tolerance, or `halting` is given.
        records_trace: Boolean. Whether the solution has the residual of every
            evaluation, which costs a tiny cell several percent of its time.
    """

    initial_state: Nest
    max_iter: int | tf.Tensor | None = None
    tol: float | tf.Tensor | None = None
    budget: int | tf.Tensor | None = None
    seed: tf.Tensor | None = None
    halting: UnchangedAnswer | None = None
    is_usable: tf.Tensor | None = None
    takes_last: bool | tf.Tensor | None = None
    records_trace: bool = True
