"""Decides when a sample stops, and which iterate is its result."""

from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.core import nonfinite
from deq_keras.core.structure import StateStructure, squared_norm
from deq_keras.solvers.loop import Evaluation
from deq_keras.solvers.solution import CONVERGED, DIVERGED, MAX_ITER, UNCHANGED
from deq_keras.solvers.unchanged_answer import Answers, UnchangedAnswer

# Avoids 0 / 0 in the relative residual if a fixed point is exactly zero. This number is
# far below relevant scales, including the small adjoints of mean losses.
_TINY_NORM = 1e-12

STOP_MODES = ("rel", "abs", "rel_max", "abs_max")


class StoppingRule(NamedTuple):
    """The stopping rule of one solve.

    Attributes:
        structure: `StateStructure` of the state.
        stop_mode: String. One of `STOP_MODES`.
        tol: Float scalar tensor or `None`. Negative values disable the tolerance.
        halting: An `UnchangedAnswer` or `None`.
        takes_last_iterate: Boolean, or Boolean scalar tensor. Whether the result is the
            last finite iterate instead of the best one.
    """

    structure: StateStructure
    stop_mode: str
    tol: tf.Tensor | None
    halting: UnchangedAnswer | None
    takes_last_iterate: bool | tf.Tensor

    def is_better(self, error: tf.Tensor, best_error: tf.Tensor) -> tf.Tensor:
        """Returns a mask of samples whose newest iterate becomes the result.

        Args:
            error: Float tensor `(batch,)`. Residuals of the newest iterate. Non-finite
                residuals never count.
            best_error: Float tensor `(batch,)`. Smallest residuals so far, infinite
                before the first evaluation.
        """
        if tf.is_tensor(self.takes_last_iterate):
            infinite = tf.constant(float("inf"), best_error.dtype)
            return error < tf.where(self.takes_last_iterate, infinite, best_error)
        if self.takes_last_iterate:
            return tf.math.is_finite(error)
        return error < best_error

    def error(self, evaluation: Evaluation) -> tf.Tensor:
        """Returns each sample's residual as defined by `stop_mode`, `(batch,)`."""
        size = evaluation.squared_norm[:, 0]
        norm = self._norm(evaluation.residual, size)
        if self.stop_mode.startswith("abs"):
            return norm
        size = squared_norm(evaluation.value)[:, 0]
        # An overflowed norm would make any residual seem small.
        scale = self._norm(evaluation.value, size)
        return nonfinite.unless_failed(scale, norm / (scale + _TINY_NORM))

    @property
    def can_stop(self) -> bool:
        """Whether a sample may be done before the budget is spent."""
        return self.tol is not None or self.halting is not None

    def start(self) -> Answers | tuple[()]:
        """Returns the memory of the rule before the first evaluation."""
        if self.halting is None:
            return ()
        return self.halting.start(self.structure.template, self.structure.batch_size)

    def update(
        self,
        status: tf.Tensor,
        error: tf.Tensor,
        evaluation: Evaluation,
        answers: Any,
    ) -> tuple[tf.Tensor, Answers | tuple[()]]:
        """Returns the status of each sample after an evaluation, and the new memory.

        Args:
            status: Integer tensor `(batch,)`, of `first_status` or the last `update`.
            error: Float tensor `(batch,)`. Result of `error`.
            evaluation: The `Evaluation`.
            answers: Memory from `start` or the last `update`.
        """
        is_active = tf.equal(status, MAX_ITER)
        has_failed = ~tf.math.is_finite(error)
        status = _changed(status, is_active & has_failed, DIVERGED)
        if self.tol is not None:
            status = _changed(status, is_active & (error <= self.tol), CONVERGED)
        if self.halting is not None:
            state = self.structure.to_state(evaluation.value)
            answers, stands = self.halting.update(answers, state)
            is_active = tf.equal(status, MAX_ITER)
            status = _changed(status, is_active & stands, UNCHANGED)
        return status, answers

    def _norm(self, matrix: tf.Tensor, squared: tf.Tensor) -> tf.Tensor:
        norm = tf.sqrt(squared)
        if not self.stop_mode.endswith("max"):
            return norm
        # A maximum over positions may ignore NaN.
        return nonfinite.unless_failed(norm, self.structure.largest_norm(matrix))


def first_status(like: tf.Tensor, is_usable: tf.Tensor | None) -> tf.Tensor:
    """Returns the status of each sample before the first evaluation, `(batch,)`.

    The status is int64: TensorFlow keeps int32 tensors in the memory of the host, even
    if a GPU computes.

    Args:
        like: Tensor `(batch,)`.
        is_usable: Boolean tensor `(batch,)`. Other samples have failed already. `None`:
            all are usable.
    """
    status = tf.fill(tf.shape(like), tf.constant(MAX_ITER, tf.int64))
    status = tf.ensure_shape(status, like.shape)
    return status if is_usable is None else _changed(status, ~is_usable, DIVERGED)


def _changed(status: tf.Tensor, mask: tf.Tensor, code: int) -> tf.Tensor:
    return tf.where(mask, tf.constant(code, status.dtype), status)
