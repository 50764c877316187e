"""Decides when a sample stops, and which iterate is its result."""

from typing import NamedTuple

import tensorflow as tf

from deq_keras.core import nonfinite
from deq_keras.core.rounding import EPSILON
from deq_keras.core.structure import Nest, StateStructure, squared_norm
from deq_keras.solvers.solution import CONVERGED, DIVERGED, MAX_ITER

# A relative residual divides by at least this fraction of the largest entry of the
# initial state, so that iterates that shrink to a fixed point of exactly zero converge.
_TINY = 1e-12

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

    Attributes:
        start: Float tensor `(batch,)`. The largest entry of the initial state.
        residual: Float tensor `(batch,)`. The smallest |f(z) - z|, or infinity.
        size: Float tensor `(batch,)`. The last |f(z)|, or infinity.
    """

    start: tf.Tensor
    residual: tf.Tensor
    size: tf.Tensor


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
    """

    structure: StateStructure
    stop_mode: str
    tol: tf.Tensor | None
    takes_last_iterate: bool
    is_branchless: bool

    @property
    def can_stop(self) -> bool:
        """Whether a sample may be done before the budget is spent."""
        return self.tol is not None

    def start(self) -> Progress:
        """Returns the memory of the rule before the first evaluation."""
        template = self.structure.template
        start = tf.reduce_max(tf.abs(self.structure.to_matrix(template)), axis=1)
        largest = tf.ensure_shape(
            tf.fill(tf.shape(start), start.dtype.max), start.shape
        )
        return Progress(start, largest, largest)

    def judge(
        self,
        evaluation: Evaluation,
        status: tf.Tensor,
        progress: Progress,
        budget: int | tf.Tensor,
        budget_if_running: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Progress]:
        """Returns residual and status of each sample after an evaluation.

        Args:
            evaluation: The `Evaluation`.
            status: Int64 tensor `(batch,)`, of `first_status` or the last `judge`.
            progress: Memory from `start` or the last `judge`.
            budget: Integer, or int32 scalar tensor.
            budget_if_running: Int32 scalar tensor. The budget, or the last result.

        Returns:
            The residual as defined by `stop_mode`; the status; the budget, or 0 if all
            samples are done; and the new memory.
        """
        # 1. Compute the norms of residual and value, (B,) each. Their squares may leave
        #    the range of float32: XLA sums in float64; elsewhere, step 3 repeats them.
        # 2. Without XLA, ask once whether the status of any active sample may change.
        #    As a rule none does, and step 3 and its transfers are skipped.
        # 3. Settle: exact norms, then DIVERGED if they are not finite, else CONVERGED
        #    if the residual is small and the state does not drift. Samples that are
        #    done keep their status.
        # 4. Remember the smallest residual and the size, which show a drift.
        #
        # The result only controls the loop. The derivative of a root at 0 is infinite.
        value, residual, squared = map(tf.stop_gradient, evaluation[1:])
        is_active = tf.equal(status, MAX_ITER)

        def settle(norm: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, ...]:
            """Decides from exact norms, which are also returned."""
            error = self._error(norm, size, progress)
            if self.stop_mode.startswith("rel"):
                # An overflowed norm would make any residual seem small.
                error = tf.where(tf.math.is_finite(size), error, size)
            new = status
            if self.tol is not None:
                has_converged = error <= self.tol
                if self.stop_mode.startswith("rel"):
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
            # A product of integers is on the host, where the loop reads it.
            is_running = tf.reduce_any(tf.equal(new, MAX_ITER))
            running = budget * tf.cast(is_running, tf.int32)
            return norm, size, error, new, running

        if self.is_branchless:
            # XLA casts within the sum, at no cost. A branch would copy the matrices.
            wide = (tf.cast(residual, tf.float64), tf.cast(value, tf.float64))
            norms = [tf.cast(norm, residual.dtype) for norm in self._norms(*wide)]
            norm, size, error, status, running = settle(*norms)
        else:
            # A predicate makes the host wait for a GPU. This one also serves to find
            # out whether all samples are done: only a decision can change that.
            norm, size = self._norms(residual, value, squared)
            error = self._error(norm, size, progress)
            # A lost residual does not matter beside a state that is much larger.
            is_exact = tf.maximum(norm, 1e-10 * size) > _SMALLEST_NORM
            is_exact &= tf.math.is_finite(norm + size)
            is_clear = is_exact if self.tol is None else is_exact & (error > self.tol)

            def settle_exactly() -> tuple[tf.Tensor, ...]:
                needs_scale = tf.reduce_any(~is_exact & is_active)
                scaled = tf.cond(
                    needs_scale,
                    lambda: self._scaled_norms(residual, value),
                    lambda: (norm, size),
                )
                # A sample must not depend on the others, not even to rounding.
                return settle(
                    tf.where(is_exact, norm, scaled[0]),
                    tf.where(is_exact, size, scaled[1]),
                )

            norm, size, error, status, running = tf.cond(
                tf.reduce_any(is_active & ~is_clear),
                settle_exactly,
                lambda: (norm, size, error, status, budget_if_running),
            )
        smallest = progress.residual
        if self.tol is not None:
            smallest = tf.minimum(norm, smallest)
        progress = Progress(progress.start, smallest, size)
        return error, status, running, progress

    @property
    def _epsilon(self) -> float:
        """Epsilon of the coarsest dtype of the state."""
        return max(EPSILON[leaf.dtype] for leaf in self.structure.leaves)

    def _error(self, norm: tf.Tensor, size: tf.Tensor, progress: Progress) -> tf.Tensor:
        """Returns the residual that `stop_mode` defines, from |f(z) - z| and |f(z)|."""
        if self.stop_mode.startswith("abs"):
            return norm
        least = _TINY * tf.maximum(progress.start, norm)
        return tf.math.divide_no_nan(norm, tf.maximum(size, least))

    def is_better(self, error: tf.Tensor, best_error: tf.Tensor) -> tf.Tensor:
        """Returns a mask of samples whose newest iterate becomes the result.

        Args:
            error: Float tensor `(batch,)`. Residuals of the newest iterate. Non-finite
                residuals never count.
            best_error: Float tensor `(batch,)`. Smallest residuals so far, the
                largest number before the first evaluation.
        """
        if self.takes_last_iterate:
            return tf.math.is_finite(error)
        return error < best_error

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
        one = tf.sqrt(tf.reshape(squared, [-1]))
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
        one, two = self._norms(residual / scale[:, None], value / scale[:, None])
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
    status = tf.fill(tf.shape(like), tf.constant(MAX_ITER, tf.int64))
    status = tf.ensure_shape(status, like.shape)
    if is_usable is None:
        return status
    return tf.where(is_usable, status, tf.constant(DIVERGED, tf.int64))
