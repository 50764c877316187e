"""The base of the fixed-point solvers, which owns their loop."""

from collections.abc import Callable
from typing import Any, Self

import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.checks import (
    check_boolean,
    check_choice,
    check_integer,
    check_non_negative,
)
from deq_keras.row_function import RowFunction
from deq_keras.serialization import Config, Configured
from deq_keras.solvers.compaction import Remaining
from deq_keras.solvers.evaluation import Evaluation, evaluate
from deq_keras.solvers.request import SolveRequest
from deq_keras.solvers.search import Search
from deq_keras.solvers.solution import MAX_ITER, Solution
from deq_keras.solvers.stopping import STOP_MODES, StoppingRule
from deq_keras.solvers.unchanged_answer import UnchangedAnswer
from deq_keras.structure import Nest, StateStructure, where_rows_if_any

_INT32 = 2**31 - 1


class FixedPointSolver(Configured):
    """Finds z with z = f(z) for every sample of a batch.

    The base class owns the loop: it evaluates f once an iteration, follows every
    sample's residual, best iterate and status, and stops when all samples are done.
    A subclass supplies only the arithmetic between two evaluations: `init` and
    `step`.

    Samples are independent: a sample that converged or turned non-finite is frozen,
    and its answer does not depend on the other samples in its batch. (The reference,
    locuslab/deq of Bai et al., 2019, stops, and picks the best iterate, for the whole
    batch at once.) Nothing raises in a graph because a solve did not converge; the
    status says so.

    Args:
        max_iter: Positive integer. Budget of function evaluations (NFE). Defaults to
            `30`.
        tol: Float >= 0, or `None`. A sample converges when its residual is at most
            `tol`. `None` spends the whole budget and takes the last iterate.
            Defaults to `1e-3`.
        stop_mode: `"rel"` for |f(z) - z| / |f(z)| or `"abs"` for |f(z) - z|, with the
            Euclidean norm over one sample's whole state. `"rel_max"` and `"abs_max"`
            take the norm of the position (token, pixel) that has the largest: where
            information travels, the few positions that still change hide in a norm over
            all. Defaults to `"rel"`.
        compact: Boolean. Whether samples that are done leave the batch, where `DEQ`
            solves outside of training: then the cost follows the mean of what samples
            need, and not the most. Answers are the same. Keras leaves out XLA for such
            a model. Defaults to `False`.

    Attributes:
        damping: Float in (0, 1]. The weight that a step without memory gives f(z).
        noise: Float >= 0. The standard deviation of what is added to every point but
            the first, in a solve that is given a seed.
    """

    damping: float = 1.0
    noise: float = 0.0

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        compact: bool = False,
    ) -> None:
        self.max_iter = _checked_max_iter(max_iter)
        self.tol = _checked_tol(tol)
        self.stop_mode = check_choice("stop_mode", stop_mode, STOP_MODES)
        self.compact = check_boolean("compact", compact)

    def solve(
        self,
        fn: Callable[[Nest], Nest],
        initial_state: Nest,
        max_iter: int | tf.Tensor | None = None,
        tol: float | tf.Tensor | None = None,
        budget: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
        halting: UnchangedAnswer | None = None,
    ) -> Solution:
        """Iterates from `initial_state` until `fn` leaves each sample unchanged.

        Args:
            fn: Function from a state to a state of the same structure, shapes and
                dtypes. A state is a nest of floating-point tensors `(batch, ...)`.
                Samples can leave the batch of a `RowFunction` alone; see `compact`.
            initial_state: State to start from.
            max_iter: Positive integer, or an integer scalar tensor (a new value needs
                no retracing; values below 1 count as 1). `None`: as constructed.
            tol: Float >= 0, or a scalar tensor, where what is below 0 is no tolerance.
                `None`: as constructed.
            budget: Integer scalar tensor, at most `max_iter`. Ends the solve sooner
                and, as XLA asks for, leaves all shapes as `max_iter` makes them.
                `None`: `max_iter`.
            seed: Int32 tensor of shape `(2,)`. Draws the noise of solvers that have
                one. `None`: without noise.
            halting: Optional `UnchangedAnswer`. Ends the search of a sample whose
                answer has settled, and makes the last iterate the result, as
                `tol=None` does.

        Returns:
            A `Solution`.

        Raises:
            ValueError: If `fn` does not return a state like `initial_state`.
        """
        request = SolveRequest(initial_state, max_iter, tol, budget, seed, halting)
        return self.solve_request(fn, request)

    def solve_request(
        self, fn: Callable[[Nest], Nest], request: SolveRequest
    ) -> Solution:
        """Returns what `solve` does, with all of its arguments in one object.

        Args:
            fn: See `solve`.
            request: A `SolveRequest`.
        """
        max_iter = self.max_iter
        if request.max_iter is not None:
            max_iter = _checked_max_iter(request.max_iter)
        budget = max_iter if request.budget is None else request.budget
        rule = self._stopping_rule(request)
        search = self._start(rule, max_iter, request)
        bound = None if tf.is_tensor(max_iter) else max_iter
        # Noise belongs to a place in the batch.
        if self.compact and isinstance(fn, RowFunction) and request.seed is None:
            search = self._searched_compactly(fn, search, rule, budget, bound)
        else:
            search = self._searched(fn, search, rule, budget, request.seed, bound)
        structure = rule.structure
        return Solution(
            value=structure.to_state(search.best_value),
            point=structure.to_state(search.best_point),
            residual=search.best_error,
            status=search.status,
            num_evaluations=search.sample_evaluations,
            batch_evaluations=search.num_evaluations,
            trace=search.trace
            if request.records_trace
            else search.best_error[None, :0],
        )

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config = dict(config)
        jitter = config.pop("max_iter_jitter", 0)
        if jitter:
            raise ValueError(
                "`max_iter_jitter` is an argument of `DEQ`, or of a phase of training, "
                f"and not of a solver. Received: max_iter_jitter={jitter!r}."
            )
        return super().from_config(config)

    def take(self, search: Search, rows: tf.Tensor) -> Search:
        """Returns the search of some samples.

        Args:
            search: A `Search`.
            rows: Int32 tensor `(samples,)`.
        """
        by_sample = {
            name: tree.map_structure(lambda leaf: tf.gather(leaf, rows), leaves)
            for name, leaves in search._asdict().items()
            if name not in ("num_evaluations", "is_running", "memory", "trace")
        }
        return search._replace(
            **by_sample,
            memory=self.take_memory(
                search.memory,
                rows,
                # The last evaluation is followed by no step.
                tf.where(search.is_running, search.num_evaluations, 0),
            ),
            trace=tree.map_structure(
                lambda trace: tf.gather(trace, rows, axis=1), search.trace
            ),
        )

    def take_memory(self, memory: Any, rows: tf.Tensor, num_steps: tf.Tensor) -> Any:
        """Returns the memory of some samples.

        Args:
            memory: What `init` or `step` returned.
            rows: Int32 tensor `(samples,)`.
            num_steps: Int32 scalar tensor. How many steps it remembers; 0 in a search
                that has ended.
        """
        del num_steps
        return tree.map_structure(lambda leaf: tf.gather(leaf, rows), memory)

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> Nest:
        """Returns the memory (a nest of tensors) before the first evaluation.

        A solver without a memory keeps this one, which is empty.

        Args:
            point: `(batch, features)` tensor, where f will be evaluated first.
            max_iter: Budget of this solve, an integer or a tensor.
        """
        return ()

    def step(
        self, evaluation: Evaluation, memory: Any, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        """Returns the next point and the new memory; evaluates nothing.

        Args:
            evaluation: The newest `Evaluation`.
            memory: What `init` or the last `step` returned.
            num_evaluations: Int32 scalar tensor, how often f was evaluated.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement "
            "`step(evaluation, memory, num_evaluations)`, which returns the next point "
            "and the memory."
        )

    def perturbed(
        self, point: tf.Tensor, num_evaluations: tf.Tensor, seed: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns a point with noise, where there is some and a seed to draw it from.

        Args:
            point: Float tensor.
            num_evaluations: Int32 scalar tensor. Every count has draws of its own.
            seed: Int32 tensor of shape `(2,)`, or `None`.
        """
        if self.noise == 0.0 or seed is None:
            return point
        return point + self.noise * tf.random.stateless_normal(
            tf.shape(point), tf.random.fold_in(seed, num_evaluations), dtype=point.dtype
        )

    def get_config(self) -> Config:
        return {
            "max_iter": self.max_iter,
            "tol": self.tol,
            "stop_mode": self.stop_mode,
            "compact": self.compact,
        }

    def _searched(
        self,
        fn: Callable[[Nest], Nest],
        search: Search,
        rule: StoppingRule,
        budget: int | tf.Tensor,
        seed: tf.Tensor | None,
        max_iter: int | None,
    ) -> Search:
        def body(search: Search) -> tuple[Search]:
            evaluation = evaluate(fn, rule.structure, search.next_point)
            return (self._advance(search, evaluation, rule, budget, seed),)

        (search,) = tf.while_loop(
            lambda search: search.is_running,
            body,
            (search,),
            maximum_iterations=max_iter,
        )
        return search

    def _searched_compactly(
        self,
        fn: RowFunction,
        search: Search,
        rule: StoppingRule,
        budget: int | tf.Tensor,
        max_iter: int | None,
    ) -> Search:
        def body(remaining: Remaining) -> tuple[Remaining]:
            search, structure = remaining.search, rule.structure
            structure = structure.resized(tf.size(remaining.indices))
            own_rule = rule._replace(structure=structure)
            function = fn.with_injection(remaining.injection)
            evaluation = evaluate(function, structure, search.next_point)
            search = self._advance(search, evaluation, own_rule, budget, None)
            remaining = remaining._replace(search=search)
            return (remaining.without_those_done(self.take, fn),)

        (remaining,) = tf.while_loop(
            lambda remaining: remaining.search.is_running,
            body,
            (Remaining.of(search, self.take, fn),),
            maximum_iterations=max_iter,
        )
        return remaining.results.entered(remaining.search)

    def _stopping_rule(self, request: SolveRequest) -> StoppingRule:
        tol = self.tol if request.tol is None else _checked_tol(request.tol)
        structure = StateStructure(request.initial_state)
        takes_last = request.takes_last
        if takes_last is None:
            takes_last = True if request.halting is not None else _is_none(tol)
        tol = None if tol is None else _as_scalar(tol, structure.dtype)
        return StoppingRule(structure, self.stop_mode, tol, request.halting, takes_last)

    def _start(
        self, rule: StoppingRule, max_iter: int | tf.Tensor, request: SolveRequest
    ) -> Search:
        point = rule.structure.to_matrix(rule.structure.template)
        status = _filled(point, MAX_ITER, tf.int32)
        sample_evaluations = _filled(point, 0, tf.int32)
        if request.is_usable is not None:
            status, sample_evaluations = faults.without_unusable(
                status, sample_evaluations, request.is_usable
            )
        return Search(
            num_evaluations=tf.constant(0),
            is_running=tf.constant(True),
            next_point=point,
            memory=self.init(point, max_iter),
            best_point=point,
            best_value=point,
            best_error=_filled(point, float("inf"), point.dtype),
            status=status,
            sample_evaluations=sample_evaluations,
            trace=_empty_trace(point, max_iter) if request.records_trace else (),
            answers=rule.start(),
        )

    def _advance(
        self,
        search: Search,
        evaluation: Evaluation,
        rule: StoppingRule,
        budget: int | tf.Tensor,
        seed: tf.Tensor | None,
    ) -> Search:
        # It decides, and is no part of the answer: its square root has no derivative at
        # a residual of zero.
        error = tf.stop_gradient(rule.error(evaluation))
        is_searched = tf.equal(search.status, MAX_ITER)
        better = is_searched & faults.improves(error, rule.bound(search.best_error))
        best_point, best_value = _take_better(better, evaluation, search)
        status, answers = rule.update(search.status, error, evaluation, search.answers)
        num_evaluations = search.num_evaluations + 1
        is_running = (num_evaluations < budget) & tf.reduce_any(
            tf.equal(status, MAX_ITER)
        )
        next_point, memory = tf.cond(
            is_running,
            lambda: self._next(evaluation, search.memory, num_evaluations, seed),
            lambda: (search.next_point, search.memory),
        )
        trace = search.trace
        if tf.is_tensor(trace):
            is_row = tf.range(tf.shape(trace)[0])[:, None] == search.num_evaluations
            trace = tf.where(is_row & is_searched[None], error[None], trace)
        return Search(
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
            trace=trace,
            answers=answers,
        )

    def _next(
        self,
        evaluation: Evaluation,
        memory: Any,
        num_evaluations: tf.Tensor,
        seed: tf.Tensor | None,
    ) -> tuple[tf.Tensor, Any]:
        step = self.step(evaluation, memory, num_evaluations)
        point, memory = self._checked_step(step, evaluation.point, memory)
        return self.perturbed(point, num_evaluations, seed), memory

    def _checked_step(
        self, step: Any, old_point: tf.Tensor, old_memory: Any
    ) -> tuple[tf.Tensor, Any]:
        """Returns what `step` returned; raises `ValueError` if a loop cannot use it."""
        old, new = _specs((old_point, old_memory)), _specs(step)
        if not _is_like(old, new):
            raise ValueError(
                f"`{type(self).__name__}.step` must return the next point and the "
                "memory, with the structure, shapes and dtypes that it was given. "
                f"Expected: {old}. Received: {new}."
            )
        return step


def _take_better(
    better: tf.Tensor, evaluation: Evaluation, search: Search
) -> tuple[tf.Tensor, tf.Tensor]:
    """The best point and value of each sample. Rows are copied only in a step in which
    some samples improve and others do not; otherwise the tensors pass by reference."""
    newest = (evaluation.point, evaluation.value)
    best = (search.best_point, search.best_value)
    return tf.cond(
        tf.reduce_all(better),
        lambda: newest,
        lambda: where_rows_if_any(better, newest, best),
    )


def _specs(step: Any) -> Any:
    def spec(leaf: Any) -> Any:
        if tf.is_tensor(leaf):
            return tf.TensorSpec(leaf.shape, leaf.dtype)
        # In eager mode, TensorFlow wraps arrays in a class of its own.
        return tf.TensorArray if isinstance(leaf, tf.TensorArray) else type(leaf)

    return tree.map_structure(spec, step)


def _is_like(old: Any, new: Any) -> bool:
    try:
        tree.assert_same_structure(old, new)
    except (TypeError, ValueError):
        return False
    pairs = zip(tree.flatten(old), tree.flatten(new), strict=True)
    return all(
        a.dtype == b.dtype and a.shape.is_compatible_with(b.shape)
        if isinstance(a, tf.TensorSpec) and isinstance(b, tf.TensorSpec)
        else a == b
        for a, b in pairs
    )


def _is_none(tol: Any) -> bool | tf.Tensor:
    return tol < 0 if tf.is_tensor(tol) else tol is None


def _as_scalar(number: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    is_tensor = tf.is_tensor(number)
    return tf.cast(number, dtype) if is_tensor else tf.constant(number, dtype)


def _empty_trace(point: tf.Tensor, max_iter: int | tf.Tensor) -> tf.Tensor:
    shape = tf.stack([tf.maximum(max_iter, 1), tf.shape(point)[0]])
    trace = tf.fill(shape, tf.constant(float("nan"), point.dtype))
    static_rows = None if tf.is_tensor(max_iter) else max_iter
    return tf.ensure_shape(trace, [static_rows, point.shape[0]])


def _filled(matrix: tf.Tensor, value: float, dtype: tf.DType) -> tf.Tensor:
    vector = tf.fill(tf.shape(matrix)[:1], tf.constant(value, dtype))
    return tf.ensure_shape(vector, matrix.shape[:1])


def _checked_max_iter(max_iter: int | tf.Tensor) -> int | tf.Tensor:
    if not tf.is_tensor(max_iter):
        return check_integer("max_iter", max_iter, 1, _INT32)
    budget: tf.Tensor = max_iter
    # A wider integer would wrap around to a budget of nothing.
    return tf.cast(tf.minimum(budget, min(budget.dtype.max, _INT32)), tf.int32)


def _checked_tol(tol: float | tf.Tensor | None) -> float | tf.Tensor | None:
    if tol is None or tf.is_tensor(tol):
        return tol
    return check_non_negative("tol", tol)
