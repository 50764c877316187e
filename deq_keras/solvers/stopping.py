"""Decides when a sample stops, and which iterate is its result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import graphs, nonfinite
from deq_keras.core.checks import check_count
from deq_keras.core.readout import check_answer, equal_answers, read_answers
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    row_norms,
    squared_norm,
)
from deq_keras.solvers.loop import Evaluation
from deq_keras.solvers.solution import CONVERGED, DIVERGED, MAX_ITER, UNCHANGED

# A relative residual divides by at least this fraction of the norm of the initial
# state, so that iterates that shrink to a fixed point of exactly zero converge, and of
# |f(z) - z|, so that it is finite if f(z) is zero.
_TINY = 1e-12

# Norms below this number may have lost entries, whose squares underflow in float32.
_SMALLEST_NORM = 1e-15

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


class Progress(NamedTuple):
    """The memory of a `StoppingRule`.

    Attributes:
        answers: `Answers`, or an empty tuple without an `UnchangedAnswer`.
        start: Float tensor `(batch,)`. Norm of the initial state.
        count: Int64 tensor `(batch,)`. Number of evaluations.
        early: Float tensor `(batch, 2)`. The smallest error and |f(z)| after the
            evaluation with the number 2^(k-1), if 2^k is the last power of two.
        late: Float tensor `(batch, 2)`. The same after the evaluation 2^k.
    """

    answers: Any
    start: tf.Tensor
    count: tf.Tensor
    early: tf.Tensor
    late: tf.Tensor


class StoppingRule(NamedTuple):
    """The stopping rule of one solve.

    A small relative residual r = |f(z) - z| / |f(z)| does not prove convergence: the
    iterates of f(z) = z + u grow without limit, and r falls like 1 / n. A sample whose
    state has grown since the first half of its solve, by a factor q, is therefore
    converged only if r has since fallen by more than q^2, that is if the residual has
    fallen faster than the state has grown. It has not if the iterates grow like n^p
    with p >= 1/2. For an iteration with the contraction factor a, this postpones the
    end only if the remaining distance r a / (1 - a) is above about 0.3. Two consecutive
    residuals would not do: rounding errors and oscillations change them.

    Attributes:
        structure: `StateStructure` of the state.
        stop_mode: String. One of `STOP_MODES`.
        tol: Float scalar tensor or `None`, no tolerance.
        halting: An `UnchangedAnswer` or `None`.
        takes_last_iterate: Boolean, or Boolean scalar tensor. Whether the result is the
            last finite iterate instead of the best one.
    """

    structure: StateStructure
    stop_mode: str
    tol: tf.Tensor | None
    halting: UnchangedAnswer | None
    takes_last_iterate: bool | tf.Tensor

    @property
    def can_stop(self) -> bool:
        """Whether a sample may be done before the budget is spent."""
        return self.tol is not None or self.halting is not None

    def start(self) -> Progress:
        """Returns the memory of the rule before the first evaluation."""
        template = self.structure.template
        answers: Any = ()
        if self.halting is not None:
            answers = self.halting.start(template, self.structure.batch_size)
        point = self.structure.to_matrix(template)
        _, start = self._norms(point, point, squared_norm(point))
        count = tf.zeros_like(start, tf.int64)
        infinite = tf.fill([tf.size(start), 2], tf.constant(np.inf, start.dtype))
        infinite = tf.ensure_shape(infinite, [start.shape[0], 2])
        return Progress(answers, start, count, infinite, infinite)

    def judge(
        self, evaluation: Evaluation, status: tf.Tensor, progress: Progress
    ) -> tuple[tf.Tensor, tf.Tensor, Progress]:
        """Returns residual and status of each sample after an evaluation.

        Args:
            evaluation: The `Evaluation`.
            status: Int64 tensor `(batch,)`, of `first_status` or the last `judge`.
            progress: Memory from `start` or the last `judge`.

        Returns:
            The residual as defined by `stop_mode`, the status, and the new memory.
        """
        # The result only controls the loop. A square root has no derivative at 0.
        _, value, residual, squared = map(tf.stop_gradient, evaluation)
        norm, size = self._norms(residual, value, squared)
        error, is_drifting = norm, tf.zeros_like(norm, tf.bool)
        progress = progress._replace(count=progress.count + 1)
        if self.stop_mode.startswith("rel"):
            # The divisor is zero only if |f(z)| and |f(z) - z| are.
            least = _TINY * (progress.start + norm)
            error = tf.math.divide_no_nan(norm, tf.maximum(size, least))
            # An overflowed norm would make any residual seem small.
            error = nonfinite.propagate_nonfinite(size, error)
            # Only powers of two divide 2^30.
            is_power = tf.equal(2**30 % progress.count, 0)[:, None]
            early = tf.where(is_power, progress.late, progress.early)
            best = tf.minimum(error, progress.late[:, 0])
            late = tf.where(is_power, tf.stack([best, size], axis=1), progress.late)
            progress = progress._replace(early=early, late=late)
            early_error, early_size = tf.unstack(early, axis=1)
            growth = tf.math.divide_no_nan(size, early_size)
            # Below the rounding errors, z + u = z.
            least = tf.maximum(error, float(np.finfo(size.dtype.as_numpy_dtype).eps))
            has_fallen = early_error > 1.1 * tf.square(growth) * least
            is_drifting = (growth > 1.01) & ~has_fallen

        is_active = tf.equal(status, MAX_ITER)
        new, answers = status, progress.answers
        if self.halting is not None:
            state = self.structure.to_state(value)
            answers, stands = self.halting.update(answers, state)
            new = tf.where(stands, tf.constant(UNCHANGED, tf.int64), new)
        if self.tol is not None:
            has_converged = (error <= self.tol) & ~is_drifting
            new = tf.where(has_converged, tf.constant(CONVERGED, tf.int64), new)
        new = tf.where(tf.math.is_finite(error), new, tf.constant(DIVERGED, tf.int64))
        status = tf.where(is_active, new, status)
        return error, status, progress._replace(answers=answers)

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

    def _norms(
        self, residual: tf.Tensor, value: tf.Tensor, squared: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the norms of two `(batch, features)` matrices, each `(batch,)`.

        Squares of states far from 1 leave the range of float32. Other norms are exact,
        so only such states pay for a second computation.

        Args:
            residual: The first matrix.
            value: The second matrix.
            squared: Float tensor `(batch, 1)`. Squared Euclidean norms of the first.
        """

        def norms(one: tf.Tensor, two: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if self.stop_mode.endswith("max"):
                positions = map(self.structure.largest_norm, (one, two))
                # A maximum over positions may ignore NaN.
                return tuple(
                    nonfinite.propagate_nonfinite(row_norms(matrix), norm)
                    for matrix, norm in zip((one, two), positions, strict=True)
                )
            return row_norms(one), row_norms(two)

        def scaled() -> tuple[tf.Tensor, tf.Tensor]:
            size = tf.maximum(tf.abs(residual), tf.abs(value))
            scale = tf.reduce_max(size, axis=1)  # (B,)
            scale = tf.where((scale > 0) & tf.math.is_finite(scale), scale, 1.0)
            one, two = norms(residual / scale[:, None], value / scale[:, None])
            return one * scale, two * scale

        if graphs.is_compiled_by_xla() or graphs.is_vectorized():
            # XLA casts within the sum, at no cost. A branch would copy the matrices.
            dtype = residual.dtype
            wide = (tf.cast(residual, tf.float64), tf.cast(value, tf.float64))
            one, two = norms(*wide)
            return tf.cast(one, dtype), tf.cast(two, dtype)
        if self.stop_mode.endswith("max"):
            one, two = norms(residual, value)
        else:
            one, two = tf.sqrt(squared[:, 0]), row_norms(value)
        is_exact = tf.math.is_finite(one + two) & (one > _SMALLEST_NORM)
        return tf.cond(
            tf.reduce_all(is_exact),
            lambda: (one, two),
            # A sample must not depend on the others, not even to rounding.
            lambda: tuple(
                tf.where(is_exact, norm, exact)
                for norm, exact in zip((one, two), scaled(), strict=True)
            ),
        )


def first_status(like: tf.Tensor, is_usable: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the status of each sample before the first evaluation, `(batch,)`.

    The status is int64: TensorFlow keeps int32 tensors in the memory of the host, even
    if a GPU computes.

    Args:
        like: Tensor `(batch,)`.
        is_usable: Boolean tensor `(batch,)`. Other samples have failed already.
            Defaults to `None`: all are usable.
    """
    status = tf.fill(tf.shape(like), tf.constant(MAX_ITER, tf.int64))
    status = tf.ensure_shape(status, like.shape)
    if is_usable is None:
        return status
    return tf.where(is_usable, status, tf.constant(DIVERGED, tf.int64))


def _on_device(answer: Nest) -> Nest:
    """Returns an answer without int32, which TensorFlow keeps in the host's memory."""
    return tree.map_structure(
        lambda leaf: tf.cast(leaf, tf.int64) if leaf.dtype == tf.int32 else leaf,
        answer,
    )
