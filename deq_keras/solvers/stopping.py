"""Decides when a sample stops, and which iterate is its result."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from deq_keras.core import graphs, nonfinite
from deq_keras.core.rounding import EPSILON
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    filled_like,
    squared_norm,
    where_rows,
)
from deq_keras.solvers.solution import CONVERGED, DIVERGED, MAX_ITER, Solution

# A relative residual divides by at least this fraction of the largest entry of the
# initial state, so that iterates that shrink to a fixed point of exactly zero converge.
_TINY = 1e-12

# Smaller than `_TINY` times any start, but not zero.
_SMALLEST_SIZE = 1e-37

# Norms below this number may have lost entries, whose squares underflow in float32.
_SMALLEST_NORM = 1e-15

# A growth of the norm by fewer epsilons of the dtype is rounding. The norms of
# normalized states differ by up to two (`l2_normalize` and `LayerNormalization` in four
# dtypes, 2 to 1e6 features).
_LARGEST_ROUNDING = 4.0

STOP_MODES = ("rel", "abs", "rel_max", "abs_max")


class Evaluation(NamedTuple):
    """One evaluation of f, as matrices.

    Attributes:
        point: Tensor `(batch, features)`. The point z.
        value: Tensor `(batch, features)`. f(z).
        residual: Tensor `(batch, features)`. g(z) = f(z) - z.
        squared_norm: Tensor `(batch, 1)`. |g(z)|^2.
    """

    point: tf.Tensor
    value: tf.Tensor
    residual: tf.Tensor
    squared_norm: tf.Tensor

    @classmethod
    def of(
        cls, structure: StateStructure, point: tf.Tensor, state: Nest
    ) -> "Evaluation":
        """Returns the evaluation with f(point) = `state`.

        Args:
            structure: `StateStructure` of the state.
            point: Tensor `(batch, features)`.
            state: Nest of tensors. Value of f at `point`.

        Raises:
            ValueError: If `state` does not have the structure.
        """
        structure.check(state, "What the function of a fixed-point problem returns")
        value = structure.to_matrix(state)
        residual = value - point
        return cls(point, value, residual, squared_norm(residual))


class Progress(NamedTuple):
    """The memory of a `StoppingRule`.

    The last two fields are empty if they cannot affect the status.

    Attributes:
        bound: Float tensor `(batch,)`. An iterate becomes the result if its residual is
            below. Negative if the sample is done.
        least: Float tensor `(batch,)`. The smallest number that divides a residual, or
            an empty tuple if nothing does.
        residual: Float tensor `(batch,)`. The smallest |f(z) - z|, or infinity.
        size: Float tensor `(batch,)`. The last |f(z)|, or infinity.
    """

    bound: tf.Tensor
    least: tf.Tensor | tuple[()]
    residual: tf.Tensor | tuple[()]
    size: tf.Tensor | tuple[()]


class StoppingRule(NamedTuple):
    """The stopping rule of one solve.

    A small relative residual |f(z) - z| / |f(z)| does not prove convergence: the
    iterates of f(z) = z + u grow without limit, and the residual falls like 1 / n. Let
    q be the growth of |f(z)| since the last evaluation, relative to |f(z)|, and a the
    contraction factor of the residual (here, over its smallest value so far). The
    remaining growth is about a q + a^2 q + ... = a q / (1 - a). A sample is converged
    only if it is below 1/3, that is if a (1 + 3 q) < 1, or if q is not larger than
    rounding.

    Attributes:
        structure: `StateStructure` of the state.
        stop_mode: String. One of `STOP_MODES`.
        tol: Float scalar tensor or `None`, no tolerance.
        takes_last_iterate: Boolean. Whether the result is the last finite iterate
            instead of the best one.
        is_branchless: Boolean. Whether branches that depend on samples are impossible
            or slow, as under XLA.
        decisive: Float scalar tensor or `None`, no tolerance. The tolerance, or zero if
            that is larger.
    """

    structure: StateStructure
    stop_mode: str
    tol: tf.Tensor | None
    takes_last_iterate: bool
    is_branchless: bool
    decisive: tf.Tensor | None

    @property
    def can_stop(self) -> bool:
        """Whether a sample may be done before the budget is spent."""
        return self.tol is not None

    @property
    def is_relative(self) -> bool:
        """Whether residuals are relative to |f(z)|."""
        return self.stop_mode.startswith("rel")

    def start(self, is_usable: tf.Tensor | None = None) -> Progress:
        """Returns the memory of the rule before the first evaluation.

        Args:
            is_usable: See `first_status`.
        """
        template = self.structure.template
        start = tf.reduce_max(tf.abs(self.structure.to_matrix(template)), axis=1)
        bound = filled_like(start, self._largest_error)
        if is_usable is not None:
            bound = tf.where(is_usable, bound, -1.0)
        if not self.is_relative:
            return Progress(bound, (), (), ())
        least = tf.maximum(_TINY * start, _SMALLEST_SIZE)
        if self.tol is None:
            return Progress(bound, least, (), ())
        largest = filled_like(start, start.dtype.max)
        return Progress(bound, least, largest, largest)

    def update(
        self,
        evaluation: Evaluation,
        old: Solution,
        progress: Progress,
        budget: int | tf.Tensor,
        budget_if_running: tf.Tensor,
    ) -> tuple[Solution, tf.Tensor, Progress]:
        """Returns the results after an evaluation.

        Args:
            evaluation: The `Evaluation`.
            old: The results so far, as in `LoopState`.
            progress: Memory from `start` or the last `update`.
            budget: Integer, or int32 scalar tensor.
            budget_if_running: Int32 scalar tensor. The budget, or the last result.

        Returns:
            The new results, where `num_evaluations` counts for samples that are done;
            the budget, or 0 if all samples are done; and the new memory.
        """
        # 1. Compute the norms of residual and value, and the residual as defined by
        #    `stop_mode`, (B,) each.
        # 2. Without XLA, ask once whether each sample is active, improves, is not to be
        #    decided, and has norms in the range of float32. As a rule all are, and the
        #    branch passes the tensors by reference.
        # 3. Otherwise, ask whether the status of an active sample may change, let
        #    `judge` decide, and select the best iterates.
        count = old.batch_evaluations + 1
        newest, best = (evaluation.point, evaluation.value), (old.point, old.value)
        has_trace = tf.is_tensor(old.trace)

        def is_running(status: tf.Tensor) -> tf.Tensor:
            return tf.reduce_any(tf.equal(status, MAX_ITER))

        def budget_if(is_running: tf.Tensor) -> tf.Tensor:
            # A product of integers is on the host, where the loop reads it.
            return budget * tf.cast(is_running, tf.int32)

        def select(error: tf.Tensor, *decisions: Any) -> tuple:
            improves = error < progress.bound
            # XLA would copy the tensors into and out of a branch.
            point, value = where_rows(improves, newest, best)
            residual = tf.where(improves, error, old.residual)
            return point, value, residual, *decisions, error if has_trace else ()

        def pass_on() -> tuple:
            bound = progress.bound if self.takes_last_iterate else error
            decisions = *unchanged, new._replace(bound=bound, least=())
            trace = error if has_trace else ()
            return *newest, error, *decisions, trace, budget_if_running

        def choose() -> tuple:
            is_exact = self._are_exact(norm, size) & (error < self._largest_error)
            is_clear = is_exact if self.tol is None else is_exact & (error > self.tol)
            is_open = tf.reduce_any(tf.equal(old.status, MAX_ITER) & ~is_clear)
            bound = self._next_bound(error, progress)
            count64 = tf.cast(count, tf.int64)

            def decide() -> tuple:
                error, status, new = self.judge(
                    evaluation, old.status, progress, (norm, size, is_exact)
                )
                is_same = tf.equal(status, old.status)
                num_evaluations = tf.where(is_same, old.num_evaluations, count64)
                decisions = error, status, num_evaluations, new._replace(least=())
                return is_running(status), *decisions

            def keep() -> tuple:
                decisions = error, *unchanged, new._replace(bound=bound, least=())
                return tf.constant(True), *decisions

            runs, *decisions = graphs.rare_cond(is_open, decide, keep)
            return *select(*decisions), budget_if(runs)

        if self.is_branchless:
            error, status, new = self.judge(evaluation, old.status, progress)
            # XLA would copy the count, to store it where a sample is done.
            is_active = tf.cast(tf.equal(old.status, MAX_ITER), tf.int64)
            num_evaluations = old.num_evaluations + is_active
            outcome = select(error, status, num_evaluations, new._replace(least=()))
            running = budget_if(is_running(status))
        else:
            value, residual, squared = map(tf.stop_gradient, evaluation[1:])
            norm, size = self._norms(residual, value, squared)
            error = self._error(norm, size, progress)
            new = self._next(norm, size, progress)
            unchanged = old.status, old.num_evaluations
            is_plain = error < progress.bound
            if self.tol is None:
                is_plain &= self._are_exact(norm, size)
            else:
                is_plain &= (error > self.decisive) & (norm > _SMALLEST_NORM)
            # A predicate makes the host wait for a GPU.
            *outcome, running = tf.cond(tf.reduce_all(is_plain), pass_on, choose)
        point, value, residual, status, num_evaluations, new, error = outcome
        trace = old.trace
        if has_trace:
            size = trace.shape[0]
            rows = np.arange(size) if size else tf.range(tf.shape(trace, tf.int64)[0])
            row = tf.cast(old.batch_evaluations, tf.int64)
            is_row = tf.expand_dims(tf.equal(rows, row), 1)
            is_active = tf.equal(old.status, MAX_ITER)
            trace = tf.where(is_row & is_active, error, trace)
        results = Solution(
            value, point, residual, status, num_evaluations, count, trace
        )
        return results, running, new._replace(least=progress.least)

    def judge(
        self,
        evaluation: Evaluation,
        status: tf.Tensor,
        progress: Progress,
        norms: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, Progress]:
        """Returns residual and status of each sample after an evaluation.

        Args:
            evaluation: The `Evaluation`.
            status: Int64 tensor `(batch,)`, of `first_status` or the last `judge`.
            progress: Memory from `start` or the last `judge`.
            norms: Tuple of tensors `(batch,)`. Norms of residual and value in float32,
                and whether they are exact, if they are known.

        Returns:
            The residual as defined by `stop_mode`; the status; and the new memory.
        """
        # 1. Compute the norms of residual and value, (B,) each. Their squares may leave
        #    the range of float32: XLA sums in float64; elsewhere they are repeated.
        # 2. Settle: DIVERGED if they are not finite, else CONVERGED if the residual is
        #    small and the state does not drift. Samples that are done keep their
        #    status.
        # 3. Remember the smallest residual and the size, which show a drift.
        #
        # The result only controls the loop. The derivative of a root at 0 is infinite.
        value, residual = map(tf.stop_gradient, evaluation[1:3])
        is_active = tf.equal(status, MAX_ITER)
        if self.is_branchless:
            # XLA casts within the sum, at no cost. A branch would copy the matrices.
            wide = (tf.cast(residual, tf.float64), tf.cast(value, tf.float64))
            norm, size = (tf.cast(one, residual.dtype) for one in self._norms(*wide))
        else:
            if norms is None:
                norm, size = self._norms(residual, value, evaluation.squared_norm)
                error = self._error(norm, size, progress)
                is_exact = self._are_exact(norm, size) & (error < self._largest_error)
            else:
                norm, size, is_exact = norms
            scaled = tf.cond(
                tf.reduce_any(~is_exact & is_active),
                lambda: self._scaled_norms(residual, value),
                lambda: (norm, size),
            )
            # A sample must not depend on the others, not even to rounding.
            norm = tf.where(is_exact, norm, scaled[0])
            size = tf.where(is_exact, size, scaled[1])

        error = self._error(norm, size, progress, is_bounded=True)
        if self.is_relative:
            # An overflowed norm would make any residual seem small.
            error = tf.where(tf.math.is_finite(size), error, size)
        new = status
        if self.tol is not None:
            has_converged = error <= self.tol
            if tf.is_tensor(progress.size):
                # Rounding alone changes the norm of a normalized state.
                rounding = self._epsilon * size
                growth = tf.maximum(size - progress.size, 0.0)
                factor = 1.0 + 3.0 * tf.math.divide_no_nan(growth, size)
                is_drifting = growth > _LARGEST_ROUNDING * rounding
                is_drifting &= factor * norm >= progress.residual
                # It jumped to where rounding hides its residual.
                is_drifting |= (0.5 * size > progress.size) & (
                    rounding >= progress.residual
                )
                has_converged &= ~is_drifting
            new = tf.where(has_converged, tf.constant(CONVERGED, tf.int64), new)
        is_finite = tf.math.is_finite(error)
        new = tf.where(is_finite, new, tf.constant(DIVERGED, tf.int64))
        new = tf.where(is_active, new, status)
        bound = self._next_bound(error, progress)
        bound = tf.where(tf.equal(new, MAX_ITER), bound, -1.0)
        return error, new, self._next(norm, size, progress)._replace(bound=bound)

    @property
    def _epsilon(self) -> float:
        """Epsilon of the coarsest dtype of the state."""
        return max(EPSILON[leaf.dtype] for leaf in self.structure.leaves)

    @property
    def _largest_error(self) -> float:
        """An upper bound of the residuals of finite evaluations."""
        return 1.000001 / _TINY if self.is_relative else self.structure.dtype.max

    def _error(
        self,
        norm: tf.Tensor,
        size: tf.Tensor,
        progress: Progress,
        is_bounded: bool = False,
    ) -> tf.Tensor:
        """Returns the residual that `stop_mode` defines, from |f(z) - z| and |f(z)|.

        Bounded, a relative residual is finite also if a state of zero follows a large
        one.
        """
        if not self.is_relative:
            return norm
        least = progress.least
        if is_bounded:
            least = tf.maximum(least, _TINY * norm)
        return norm / tf.maximum(size, least)

    def _are_exact(self, norm: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        """Returns whether no square that matters left the range of float32."""
        # A lost residual does not matter beside a state that is much larger.
        are_exact = tf.maximum(norm, 1e-10 * size) > _SMALLEST_NORM
        return are_exact & tf.math.is_finite(size) if self.is_relative else are_exact

    def _next_bound(self, error: tf.Tensor, progress: Progress) -> tf.Tensor:
        """Returns the bound of samples that are not done."""
        if self.takes_last_iterate:
            return progress.bound
        return tf.minimum(error, progress.bound)

    def _next(self, norm: tf.Tensor, size: tf.Tensor, progress: Progress) -> Progress:
        """Returns the memory that shows a drift."""
        if not tf.is_tensor(progress.size):
            return progress
        smallest = tf.minimum(norm, progress.residual)
        return progress._replace(residual=smallest, size=size)

    def _norms(
        self, residual: tf.Tensor, value: tf.Tensor, squared: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the norms of two `(batch, features)` matrices, each `(batch,)`.

        Args:
            residual: The first matrix.
            value: The second matrix.
            squared: Float tensor `(batch, 1)`. Squared Euclidean norms of the first, if
                they are known.
        """
        if squared is None:
            squared = squared_norm(residual)
        one = tf.sqrt(tf.squeeze(squared, 1))
        two = tf.sqrt(tf.reduce_sum(tf.square(value), axis=1))
        if not self.stop_mode.endswith("max"):
            return one, two
        # A maximum over positions may ignore NaN.
        propagate, largest = nonfinite.propagate_nonfinite, self.structure.largest_norm
        return propagate(one, largest(residual)), propagate(two, largest(value))

    def _scaled_norms(
        self, residual: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the norms of matrices whose squares leave the range of float32."""
        scale = tf.reduce_max(tf.maximum(tf.abs(residual), tf.abs(value)), axis=1)
        scale = tf.where((scale > 0) & tf.math.is_finite(scale), scale, 1.0)  # (B,)
        column = tf.expand_dims(scale, 1)
        one, two = self._norms(residual / column, value / column)
        return one * scale, two * scale


def first_status(like: tf.Tensor, is_usable: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the status of each sample before the first evaluation, `(batch,)`.

    The status is int64: TensorFlow keeps int32 tensors in the memory of the host, even
    if a GPU computes.

    Args:
        like: Tensor `(batch,)`.
        is_usable: Boolean tensor `(batch,)`. Other samples have failed already.
            Defaults to `None`: all are usable.
    """
    status = filled_like(like, tf.constant(MAX_ITER, tf.int64))
    if is_usable is None:
        return status
    return tf.where(is_usable, status, tf.constant(DIVERGED, tf.int64))
