"""A loop that removes finished samples from the batch.

Of B samples, the variables of the loop hold the A that are still active, in any order.
`indices` (A,) are their rows in the whole batch.

1. All samples start in the loop (A = B), with their rows of the injection and the mask.
2. After an evaluation, if enough samples are done, their results (B', ...) are written
   into the results (B, ...) of the whole batch, at the rows of `indices`. The variables
   of the loop keep the rows of the other A - B' samples; a shape in a loop may change.
3. When the loop ends, the remaining samples are written as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest
from deq_keras.solvers.loop import LoopState
from deq_keras.solvers.solution import MAX_ITER, Solution

# Compaction copies the active samples, so it waits until this fraction is finished.
_SMALLEST_FRACTION = 0.125

# `FixedPointSolver.take_memory`.
TakeMemory = Callable[[Any, tf.Tensor, tf.Tensor], Any]


class ActiveBatch(NamedTuple):
    """The samples that a compacted loop still evaluates.

    Attributes:
        indices: Int32 tensor `(active,)`. Rows of the samples in the whole batch.
        constants: Nest of tensors. Injection and mask of the samples.
        results: The `Solution` of the whole batch, as in `LoopState`.
    """

    indices: tf.Tensor
    constants: Nest
    results: Solution

    @classmethod
    def of(
        cls, problem: FixedPointProblem, state: LoopState, take_memory: TakeMemory
    ) -> tuple[LoopState, ActiveBatch]:
        """Returns the loop state and the batch with all samples."""
        # Hides the batch size from Grappler, which would otherwise constant-fold it
        # although it changes inside the loop.
        indices = tf.compat.v1.placeholder_with_default(
            tf.range(tf.size(state.results.status)), [None]
        )
        batch = cls(indices, _constants(problem.rows(indices)), state.results)
        return _take(state, indices, take_memory), batch

    def problem(self, whole: FixedPointProblem) -> FixedPointProblem:
        """Returns the problem of the active samples."""
        injection, mask = self.constants
        return whole.bound(injection, mask=mask if tf.is_tensor(mask) else None)

    def without_done(
        self, whole: FixedPointProblem, state: LoopState, take_memory: TakeMemory
    ) -> tuple[LoopState, ActiveBatch]:
        """Removes samples that are done, unless they are too few to justify a copy."""
        is_active = tf.equal(state.results.status, MAX_ITER) & state.is_running
        fraction = tf.reduce_mean(tf.cast(~is_active, tf.float32))

        def split() -> tuple[LoopState, ActiveBatch]:
            done, active = (
                tf.cast(tf.where(mask)[:, 0], tf.int32)
                for mask in (~is_active, is_active)
            )
            # `done` and `active` count within the loop, `rows` within the whole batch.
            rows = tf.gather(self.indices, done)  # (B',)
            batch = ActiveBatch(
                tf.gather(self.indices, active),
                _constants(self.problem(whole).rows(active)),
                _with_rows(self.results, rows, _rows_of(state.results, done)),
            )
            return _take(state, active, take_memory), batch

        is_due = ~state.is_running | (fraction >= _SMALLEST_FRACTION)
        return tf.cond(is_due, split, lambda: (state, self))


def _take(state: LoopState, rows: tf.Tensor, take_memory: TakeMemory) -> LoopState:
    """Returns the variables of the loop for some samples."""
    # No step follows the last evaluation.
    num_steps = tf.where(state.is_running, state.results.batch_evaluations, 0)
    return state._replace(
        results=_rows_of(state.results, rows),
        next_point=tf.gather(state.next_point, rows),
        memory=take_memory(state.memory, rows, num_steps),
        progress=tree.map_structure(lambda leaf: tf.gather(leaf, rows), state.progress),
    )


def _rows_of(results: Solution, rows: tf.Tensor) -> Solution:
    """Returns the results of some samples."""
    return Solution(
        value=tf.gather(results.value, rows),
        point=tf.gather(results.point, rows),
        residual=tf.gather(results.residual, rows),
        status=tf.gather(results.status, rows),
        num_evaluations=tf.gather(results.num_evaluations, rows),
        batch_evaluations=results.batch_evaluations,
        trace=tree.map_structure(
            lambda trace: tf.gather(trace, rows, axis=1), results.trace
        ),
    )


def _with_rows(results: Solution, indices: tf.Tensor, rows: Solution) -> Solution:
    """Returns the results with new rows for some samples."""

    def update(leaf: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        return tf.tensor_scatter_nd_update(leaf, indices[:, None], new)

    def update_columns(leaf: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        # A trace has the samples in its second axis.
        return tf.transpose(update(tf.transpose(leaf), tf.transpose(new)))  # (N, B)

    return Solution(
        value=update(results.value, rows.value),
        point=update(results.point, rows.point),
        residual=update(results.residual, rows.residual),
        status=update(results.status, rows.status),
        num_evaluations=update(results.num_evaluations, rows.num_evaluations),
        batch_evaluations=rows.batch_evaluations,
        trace=tree.map_structure(update_columns, results.trace, rows.trace),
    )


def _constants(problem: FixedPointProblem) -> Nest:
    return problem.injection, () if problem.mask is None else problem.mask
