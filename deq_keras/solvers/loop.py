"""The variables of a solver's loop."""

from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.solvers.solution import Solution


class LoopState(NamedTuple):
    """The variables of a solver's loop, with B samples of D features.

    Attributes:
        results: A `Solution` with matrices `(B, D)` in place of states, int64 counts,
            and an empty tuple instead of a trace that is not recorded.
        budget_if_running: Int32 scalar tensor. The budget, or 0 if all samples are
            done.
        next_point: Tensor `(B, D)`. The point of the next evaluation.
        memory: Memory of the solver.
        progress: Memory of the stopping rule.
    """

    results: Solution
    budget_if_running: tf.Tensor
    next_point: tf.Tensor
    memory: Any
    progress: Any

    @property
    def is_running(self) -> tf.Tensor:
        """Boolean scalar. Whether another evaluation follows."""
        return self.results.batch_evaluations < self.budget_if_running
