"""A loop that removes finished samples from the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest
from deq_keras.solvers.loop import LoopState
from deq_keras.solvers.solution import MAX_ITER

# Compaction copies the active samples, so it waits until this fraction is finished.
_SMALLEST_FRACTION = 0.125

# Function from a `LoopState` and row indices to the `LoopState` of these samples.
Take = Callable[[LoopState, tf.Tensor], LoopState]


class ActiveBatch(NamedTuple):
    """The samples that a compacted loop still evaluates.

    Attributes:
        indices: Int32 tensor `(active,)`. Rows of the samples in the whole batch.
        constants: Nest of tensors. Injection and mask of the samples.
        results: The `Results` of the whole batch.
    """

    indices: tf.Tensor
    constants: Nest
    results: Results

    @classmethod
    def of(
        cls, problem: FixedPointProblem, state: LoopState, take: Take
    ) -> tuple[LoopState, ActiveBatch]:
        """Returns the loop state and the batch with all samples."""
        # Hides the batch size from Grappler, which would otherwise constant-fold it
        # although it changes inside the loop.
        indices = tf.compat.v1.placeholder_with_default(
            tf.range(tf.size(state.status)), [None]
        )
        constants = _constants(problem.rows(indices))
        return take(state, indices), cls(indices, constants, Results.of(state))

    def problem(self, whole: FixedPointProblem) -> FixedPointProblem:
        """Returns the problem of the active samples."""
        injection, mask = self.constants
        return whole.bound(injection, mask=mask if tf.is_tensor(mask) else None)

    def without_done(
        self, whole: FixedPointProblem, state: LoopState, take: Take
    ) -> tuple[LoopState, ActiveBatch]:
        """Removes samples that are done, unless they are too few to justify a copy."""
        is_active = tf.equal(state.status, MAX_ITER) & state.is_running
        fraction = tf.reduce_mean(tf.cast(~is_active, tf.float32))
        return tf.cond(
            ~state.is_running | (fraction >= _SMALLEST_FRACTION),
            lambda: self._split(is_active, whole, state, take),
            lambda: (state, self),
        )

    def _split(
        self,
        is_active: tf.Tensor,
        whole: FixedPointProblem,
        state: LoopState,
        take: Take,
    ) -> tuple[LoopState, ActiveBatch]:
        done, active = _where(~is_active), _where(is_active)
        done_results = Results.of(take(state, done))
        return take(state, active), ActiveBatch(
            tf.gather(self.indices, active),
            _constants(self.problem(whole).rows(active)),
            self.results.with_rows(tf.gather(self.indices, done), done_results),
        )


class Results(NamedTuple):
    """The results of a loop, with one row per sample (also in the trace)."""

    best_point: tf.Tensor
    best_value: tf.Tensor
    best_error: tf.Tensor
    status: tf.Tensor
    sample_evaluations: tf.Tensor
    trace: tf.Tensor | tuple[()]

    @classmethod
    def of(cls, state: LoopState) -> Results:
        found = {name: getattr(state, name) for name in cls._fields}
        trace = tree.map_structure(tf.transpose, state.trace)
        return cls(**{**found, "trace": trace})

    def with_rows(self, indices: tf.Tensor, rows: Results) -> Results:
        """Returns the results with new rows for some samples."""
        return tree.map_structure(
            lambda leaf, new: tf.tensor_scatter_nd_update(leaf, indices[:, None], new),
            self,
            rows,
        )

    def entered(self, state: LoopState) -> LoopState:
        """Returns a loop state with these results."""
        trace = tree.map_structure(tf.transpose, self.trace)
        return state._replace(**{**self._asdict(), "trace": trace})


def _constants(problem: FixedPointProblem) -> Nest:
    return problem.injection, () if problem.mask is None else problem.mask


def _where(mask: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(mask)[:, 0], tf.int32)
