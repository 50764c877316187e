"""The base of the fixed-point solvers, which owns their loop."""

from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.checks import (
    check_choice,
    check_integer,
    check_jitter,
    check_non_negative,
)
from deq_keras.solvers.solution import CONVERGED, DIVERGED, MAX_ITER, Solution
from deq_keras.structure import StateStructure

# Keeps 0 / 0 away from the relative residual at a fixed point that is exactly zero.
# It is far below any scale that matters, because the adjoint of a mean loss is small.
_TINY_NORM = 1e-12

_INT32 = 2**31 - 1
_STOP_MODES = ("rel", "abs")


class Evaluation(NamedTuple):
    """One evaluation of f, as matrices.

    Attributes:
        point: `(batch, features)`. Where f was evaluated: z.
        value: `(batch, features)`. f(z).
        residual: `(batch, features)`. g(z) = f(z) - z.
        squared_norm: `(batch, 1)`. |g(z)|^2.
    """

    point: tf.Tensor
    value: tf.Tensor
    residual: tf.Tensor
    squared_norm: tf.Tensor


class _Search(NamedTuple):
    """The loop's variables."""

    num_evaluations: tf.Tensor  # () int32, of the whole batch
    is_running: tf.Tensor  # () bool
    next_point: tf.Tensor  # (B, D)
    memory: Any
    best_point: tf.Tensor  # (B, D)
    best_value: tf.Tensor  # (B, D)
    best_error: tf.Tensor  # (B,)
    status: tf.Tensor  # (B,) int32, MAX_ITER while the sample is searched
    sample_evaluations: tf.Tensor  # (B,) int32
    trace: tf.Tensor  # (max_iter, B)


class FixedPointSolver:
    """Finds z with z = f(z) for every sample of a batch.

    The base class owns the loop: it evaluates f once an iteration, follows every
    sample's residual, best iterate and status, and stops when all samples are done.
    A subclass supplies only the arithmetic between two evaluations: `init` and
    `step`.

    Samples are independent: a sample that converged or turned non-finite is frozen,
    and its answer does not depend on the other samples in its batch. (The reference
    stops, and picks the best iterate, for the whole batch at once.) Nothing raises in a
    graph because a solve did not converge; the status says so.

    Args:
        max_iter: int >= 1. Budget of function evaluations (NFE). Defaults to `30`.
        tol: float >= 0, or `None`. A sample converges when its residual is at most
            `tol`. `None` spends the whole budget and takes the last iterate.
            Defaults to `1e-3`.
        stop_mode: `"rel"` for |f(z) - z| / |f(z)| or `"abs"` for |f(z) - z|, with the
            Euclidean norm over one sample's whole state. Defaults to `"rel"`.
        max_iter_jitter: int in [0, max_iter). `DEQ` draws the budget of every training
            step uniformly from `max_iter - max_iter_jitter` to `max_iter`, so that a
            model does not learn to rely on one of them. All else has the whole budget:
            inference, and the adjoint of the backward pass. Defaults to `0`.
    """

    def __init__(self, max_iter=30, tol=1e-3, stop_mode="rel", max_iter_jitter=0):
        self.max_iter = _checked_max_iter(max_iter)
        self.max_iter_jitter = check_jitter(max_iter_jitter, self.max_iter)
        self.tol = _checked_tol(tol)
        self.stop_mode = check_choice("stop_mode", stop_mode, _STOP_MODES)

    def solve(self, fn, initial_state, max_iter=None, tol=None, seed=None):
        """Iterates from `initial_state` until `fn` leaves each sample unchanged.

        Args:
            fn: function from a state to a state of the same structure, shapes and
                dtypes. A state is a nest of floating-point tensors `(batch, ...)`.
            initial_state: the state to start from.
            max_iter: int >= 1 or an integer scalar tensor (a new value needs no
                retracing; values below 1 count as 1). `None`: as constructed.
            tol: float >= 0 or a scalar tensor. `None`: as constructed.
            seed: int32 tensor of shape `(2,)` that draws by how much, of 0 to
                `max_iter_jitter`, the budget is lowered. `None`: not at all.

        Returns:
            A `Solution`.

        Raises:
            ValueError: if `fn` does not return a state like `initial_state`.
        """
        max_iter = self.max_iter if max_iter is None else _checked_max_iter(max_iter)
        tol = self.tol if tol is None else _checked_tol(tol)
        budget = self._drawn_budget(max_iter, seed)
        structure = StateStructure(initial_state)

        if tol is not None:
            tol = (
                tf.cast(tol, structure.dtype)
                if tf.is_tensor(tol)
                else tf.constant(tol, structure.dtype)
            )

        def evaluate(point):
            state = fn(structure.to_state(point))
            structure.check(state, "What the function of a fixed-point problem returns")
            value = structure.to_matrix(state)
            residual = value - point
            return Evaluation(point, value, residual, _squared_norm(residual))

        def body(search):
            return (self._advance(search, evaluate(search.next_point), budget, tol),)

        search = self._start(structure.to_matrix(structure.template), max_iter)
        (search,) = tf.while_loop(
            lambda search: search.is_running,
            body,
            (search,),
            maximum_iterations=None if tf.is_tensor(max_iter) else max_iter,
        )
        return Solution(
            value=structure.to_state(search.best_value),
            point=structure.to_state(search.best_point),
            residual=search.best_error,
            status=search.status,
            num_evaluations=search.sample_evaluations,
            batch_evaluations=search.num_evaluations,
            trace=search.trace,
        )

    def init(self, point, max_iter):
        """Returns the memory (a nest of tensors) before the first evaluation.

        Args:
            point: `(batch, features)` tensor, where f will be evaluated first.
            max_iter: the budget of this solve, an int or a tensor.
        """
        raise NotImplementedError

    def step(self, evaluation, memory, num_evaluations):
        """Returns the next point and the new memory; evaluates nothing.

        Args:
            evaluation: the newest `Evaluation`.
            memory: what `init` or the last `step` returned.
            num_evaluations: int32 scalar tensor, how often f was evaluated.
        """
        raise NotImplementedError

    def get_config(self):
        return {
            "max_iter": self.max_iter,
            "tol": self.tol,
            "stop_mode": self.stop_mode,
            "max_iter_jitter": self.max_iter_jitter,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __repr__(self):
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({arguments})"

    def _drawn_budget(self, max_iter, seed):
        """The budget of one solve. Shapes depend on `max_iter` only, as XLA needs."""
        if seed is None or self.max_iter_jitter == 0:
            return max_iter
        return max_iter - tf.random.stateless_uniform(
            (), seed, 0, self.max_iter_jitter + 1, tf.int32
        )

    def _start(self, point, max_iter):
        batch_size = tf.shape(point)[0]
        trace_shape = tf.stack([tf.maximum(max_iter, 1), batch_size])
        trace = tf.fill(trace_shape, tf.constant(float("nan"), point.dtype))
        static_rows = None if tf.is_tensor(max_iter) else max_iter
        return _Search(
            num_evaluations=tf.constant(0),
            is_running=tf.constant(True),
            next_point=point,
            memory=self.init(point, max_iter),
            best_point=point,
            best_value=point,
            best_error=_filled(point, float("inf"), point.dtype),
            status=_filled(point, MAX_ITER, tf.int32),
            sample_evaluations=_filled(point, 0, tf.int32),
            trace=tf.ensure_shape(trace, [static_rows, point.shape[0]]),
        )

    def _advance(self, search, evaluation, budget, tol):
        # It decides, and is no part of the answer: its square root has no derivative at
        # a residual of zero.
        error = tf.stop_gradient(self._error(evaluation))
        is_searched = tf.equal(search.status, MAX_ITER)
        is_finite = tf.math.is_finite(error)
        better = is_searched & (is_finite if tol is None else error < search.best_error)
        best_point, best_value = _take_better(better, evaluation, search)
        status = tf.where(is_searched & ~is_finite, DIVERGED, search.status)
        if tol is not None:
            has_converged = is_searched & (error <= tol)
            status = tf.where(has_converged, CONVERGED, status)
        num_evaluations = search.num_evaluations + 1
        is_running = (num_evaluations < budget) & tf.reduce_any(
            tf.equal(status, MAX_ITER)
        )
        next_point, memory = tf.cond(
            is_running,
            lambda: self.step(evaluation, search.memory, num_evaluations),
            lambda: (search.next_point, search.memory),
        )
        is_row = tf.range(tf.shape(search.trace)[0])[:, None] == search.num_evaluations
        return _Search(
            num_evaluations=num_evaluations,
            is_running=is_running,
            next_point=next_point,
            memory=memory,
            best_point=best_point,
            best_value=best_value,
            best_error=tf.where(better, error, search.best_error),
            status=status,
            sample_evaluations=search.sample_evaluations
            + tf.cast(is_searched, tf.int32),
            trace=tf.where(is_row & is_searched[None], error[None], search.trace),
        )

    def _error(self, evaluation):
        norm = tf.sqrt(evaluation.squared_norm[:, 0])
        if self.stop_mode == "abs":
            return norm
        scale = tf.sqrt(_squared_norm(evaluation.value)[:, 0])
        # A norm that overflowed would make any residual look small.
        return tf.where(tf.math.is_finite(scale), norm / (scale + _TINY_NORM), scale)


def _take_better(better, evaluation, search):
    """The best point and value of each sample. Rows are copied only in a step in which
    some samples improve and others do not; otherwise the tensors pass by reference."""

    def select():
        row = better[:, None]
        return (
            tf.where(row, evaluation.point, search.best_point),
            tf.where(row, evaluation.value, search.best_value),
        )

    return tf.cond(
        tf.reduce_all(better),
        lambda: (evaluation.point, evaluation.value),
        lambda: tf.cond(
            tf.reduce_any(better),
            select,
            lambda: (search.best_point, search.best_value),
        ),
    )


def _squared_norm(matrix):
    return tf.reduce_sum(tf.square(matrix), axis=1, keepdims=True)  # (B, 1)


def _filled(matrix, value, dtype):
    vector = tf.fill(tf.shape(matrix)[:1], tf.constant(value, dtype))
    return tf.ensure_shape(vector, matrix.shape[:1])


def _checked_max_iter(max_iter):
    if tf.is_tensor(max_iter):
        # A wider integer would wrap around to a budget of nothing.
        return tf.cast(tf.minimum(max_iter, min(max_iter.dtype.max, _INT32)), tf.int32)
    return check_integer("max_iter", max_iter, 1, _INT32)


def _checked_tol(tol):
    if tol is None or tf.is_tensor(tol):
        return tol
    return check_non_negative("tol", tol)
