"""Decides when a sample stops, and which iterate is its result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_count
from deq_keras.core.readout import check_answer, equal_answers, read_answers
from deq_keras.core.structure import Nest, StateStructure, squared_norm
from deq_keras.solvers.loop import Evaluation
from deq_keras.solvers.solution import CONVERGED, DIVERGED, MAX_ITER, UNCHANGED

# Avoids 0 / 0 in the relative residual if a fixed point is exactly zero. This number is
# far below relevant scales, including the small adjoints of mean losses.
_TINY_NORM = 1e-12

STOP_MODES = ("rel", "abs", "rel_max", "abs_max")


class Answers(NamedTuple):
    """The latest readout of every sample.

    Attributes:
        answer: Nest of integer or Boolean tensors `(batch, ...)`. The readout.
        num_unchanged: Int64 tensor `(batch,)`. Evaluations since its last change.
    """

    answer: Nest
    num_unchanged: tf.Tensor


class UnchangedAnswer:
    """Stops a sample whose readout has not changed for `patience` evaluations.

    The readout is often final long before the state converges. On long inputs, a small
    residual does not guarantee a final readout: a few positions can still change
    without affecting the residual much. Stopped samples have the status `UNCHANGED`.

    Args:
        answer: Function from a state, a nest of `(batch, ...)` tensors, to a readout, a
            nest of integer or Boolean tensors `(batch, ...)`. For example, the `argmax`
            of a head's logits. It is called once per evaluation.
        patience: Positive integer. Number of consecutive evaluations without a change.
            One evaluation propagates information only within the cell's receptive
            field, so a small patience can stop before a change reaches the readout.
            Defaults to `4`.

    Example:

    >>> halting = deq_keras.solvers.UnchangedAnswer(
    ...     lambda state: tf.round(state) > 0, patience=3
    ... )
    >>> solver = deq_keras.solvers.FixedPointIteration(tol=None)
    >>> solution = solver.solve(
    ...     lambda z: 0.9 * z + 1.0,
    ...     deq_keras.solvers.SolveRequest(tf.zeros((1, 1)), halting=halting),
    ... )
    >>> int(solution.num_evaluations[0])
    4
    """

    def __init__(self, answer: Callable[[Nest], Nest], patience: int = 4) -> None:
        self.answer = check_answer(answer)
        self.patience = check_count("patience", patience)

    def read_through(self, state_of: Callable[[Nest], Nest]) -> "UnchangedAnswer":
        """Returns the same rule for iterates from which `state_of` computes states."""
        answer = self.answer
        return UnchangedAnswer(lambda iterate: answer(state_of(iterate)), self.patience)

    def start(self, state: Nest, batch_size: tf.Tensor) -> Answers:
        """Returns the `Answers` of the initial state."""
        return Answers(
            _on_device(read_answers(self.answer, state)),
            tf.zeros([batch_size], tf.int64),
        )

    def update(self, answers: Answers, state: Nest) -> tuple[Answers, tf.Tensor]:
        """Compares the readout of a new state with the previous one.

        Args:
            answers: The previous `Answers`.
            state: Nest of `(batch, ...)` tensors.

        Returns:
            The new `Answers` and a Boolean tensor `(batch,)`, which marks the samples
            that have been unchanged for `patience` evaluations.
        """
        answer = _on_device(read_answers(self.answer, state))
        is_unchanged = equal_answers(answer, answers.answer)
        num_unchanged = answers.num_unchanged + 1
        num_unchanged = tf.where(
            is_unchanged, num_unchanged, tf.zeros_like(num_unchanged)
        )
        return Answers(answer, num_unchanged), num_unchanged >= self.patience


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
        size = tf.squeeze(evaluation.squared_norm, 1)
        norm = self._norm(evaluation.residual, size)
        if self.stop_mode.startswith("abs"):
            return norm
        size = tf.squeeze(squared_norm(evaluation.value), 1)
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


def _on_device(answer: Nest) -> Nest:
    """Returns an answer without int32, which TensorFlow keeps in the host's memory."""
    return tree.map_structure(
        lambda leaf: tf.cast(leaf, tf.int64) if leaf.dtype == tf.int32 else leaf,
        answer,
    )
