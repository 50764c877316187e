"""Base class of fixed-point solvers, which owns their loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import checkpointing, graphs, snapshots
from deq_keras.core.checks import (
    check_boolean,
    check_choice,
    check_count,
    check_integer,
    check_non_negative,
)
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import as_seed, fold_in, normal
from deq_keras.core.request import SolveRequest, check_request
from deq_keras.core.serialization import Config, Configured, arguments_of
from deq_keras.core.structure import Nest, StateStructure, where_rows
from deq_keras.solvers.compaction import ActiveBatch
from deq_keras.solvers.loop import Evaluation, LoopResult, LoopState, evaluate
from deq_keras.solvers.solution import DIVERGED, MAX_ITER, Solution
from deq_keras.solvers.stopping import STOP_MODES, StoppingRule, first_status

_INT32 = 2**31 - 1


class FixedPointSolver(Configured):
    """Finds z with z = f(z) for every sample of a batch.

    The base class owns the loop: it evaluates f once per iteration, tracks each
    sample's residual, best iterate and status, and stops when all samples are done.
    Subclasses implement only the update between two evaluations: `init` and `step`.

    Samples are independent: a converged or non-finite sample is frozen, and its result
    does not depend on the other samples of the batch. (The reference, locuslab/deq of
    Bai et al., 2019, stops, and selects the best iterate, for the whole batch at once.)
    A solve that does not converge does not raise an error; check its status.

    Args:
        max_iter: Positive integer. Budget of function evaluations (NFE). Defaults to
            `30`.
        tol: Non-negative float or `None`. A sample converges when its residual is at
            most `tol`. `None` uses the whole budget and returns the last iterate.
            Defaults to `1e-3`.
        stop_mode: `"rel"` for |f(z) - z| / |f(z)| or `"abs"` for |f(z) - z|, with the
            Euclidean norm over one sample's whole state. `"rel_max"` and `"abs_max"`
            use the largest norm over positions (tokens, pixels). Use them if
            information travels between positions: a norm over the whole state hides the
            few positions that still change. Defaults to `"rel"`.
        compact: Boolean. Whether to remove converged samples from the batch in solves
            outside of training. The cost then depends on the mean number of evaluations
            instead of the maximum. Results do not change. Keras does not use XLA for
            models with compact solvers. Defaults to `False`.
        check_every: Positive integer k. The loop checks after every k-th evaluation
            whether all samples are done. On a GPU, each check makes the host wait for
            the device; a few extra evaluations can cost less. Results do not change,
            because finished samples are frozen. Compact solves, and solves with
            `checkpoints` or `num_states`, check after every evaluation. Defaults to
            `1`.

    Attributes:
        damping: Float in (0, 1]. Weight of f(z) in a step without memory.
        noise: Non-negative float. Standard deviation of the noise that is added to
            every point except the first, in solves with a seed.
    """

    damping: float = 1.0
    noise: float = 0.0

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        compact: bool = False,
        check_every: int = 1,
    ) -> None:
        # Only requests may contain tensors, which configs could not hold.
        self.max_iter = check_integer("max_iter", max_iter, 1, _INT32)
        self.tol = None if tol is None else check_non_negative("tol", tol)
        self.stop_mode = check_choice("stop_mode", stop_mode, STOP_MODES)
        self.compact = check_boolean("compact", compact)
        self.check_every = check_count("check_every", check_every)

    def solve(
        self, problem: FixedPointProblem | Callable[[Nest], Nest], request: SolveRequest
    ) -> Solution:
        """Iterates from the initial state until every sample converges.

        Args:
            problem: A `FixedPointProblem`, or a function from a state to a state of the
                same structure, shapes and dtypes. A state is a nest of floating-point
                tensors `(batch, ...)`.
            request: A `SolveRequest` with an initial state.

        Returns:
            A `Solution`.

        Raises:
            ValueError: If `request` is not a `SolveRequest` with an initial state, or
                f does not return a state of the same structure.
        """
        problem = FixedPointProblem.of(problem)
        request = check_request(request)
        request = request._replace(seed=as_seed(request.seed))
        max_iter = self.max_iter
        if request.max_iter is not None:
            max_iter = _checked_max_iter(request.max_iter)
        budget = max_iter
        if request.budget is not None:
            budget = _checked_budget(request.budget, max_iter)
        if request.num_states is not None:
            snapshots.check_num_states(request.num_states, budget, "the budget")
            request = request._replace(allows_compaction=False)
        rule = self.stopping_rule(request)
        state = self._start(rule, max_iter, budget, request, problem.is_usable)
        # Noise depends on the row of a sample, so a solve with noise keeps all rows.
        is_compact = self.compact and request.allows_compaction and request.seed is None
        is_compact = is_compact and problem.has_rows is not None
        interval = _interval(request.checkpoints, max_iter)
        if interval is not None:
            problem = problem.bound(problem.injection, weights=problem.weights)
            is_compact = False
        # A gradient with checkpoints counts evaluations, so a round has only one.
        is_single = is_compact or interval is not None or request.num_states is not None
        check_every = 1 if is_single else self.check_every
        can_stop = is_compact or rule.can_stop
        is_whole = request.budget is None and interval is None
        is_whole = is_whole and not tf.is_tensor(max_iter)
        rounds = _Rounds(budget, check_every, can_stop, is_whole)

        def body(
            state: LoopState, batch: ActiveBatch | tuple[()]
        ) -> tuple[LoopState, ActiveBatch | tuple[()]]:
            if not batch:
                evaluation = evaluate(problem, rule.structure, state.next_point)
                return self._advance(state, evaluation, rule, rounds, request), ()
            structure = rule.structure.resized(tf.size(batch.indices))
            active = batch.problem(problem)
            evaluation = evaluate(active, structure, state.next_point)
            active_rule = rule._replace(structure=structure)
            state = self._advance(state, evaluation, active_rule, rounds, request)
            return batch.without_done(problem, state, self.take)

        state, batch = checkpointing.loop(
            lambda state, _: rounds.continues(state),
            lambda state, batch: rounds.run(body, state, batch),
            ActiveBatch.of(problem, state, self.take) if is_compact else (state, ()),
            None if tf.is_tensor(max_iter) else max_iter,
            interval,
            () if interval is None else problem.sources,
        )
        if batch:
            state = batch.results.entered(state)
        return self._solution(state, rule, request.num_states is not None)

    def assess(
        self, point: Nest, value: Nest, is_usable: tf.Tensor | None = None
    ) -> Solution:
        """Returns the `Solution` of a solve that stopped at `point`.

        Does not evaluate f. The status is `CONVERGED` if the residual is at most the
        solver's tolerance, and `DIVERGED` if it is not finite.

        Args:
            point: Nest of `(batch, ...)` tensors.
            value: f(point), a nest like `point`.
            is_usable: Boolean tensor `(batch,)`. Other samples count as diverged.
        """
        rule = self.stopping_rule(SolveRequest(point))
        structure = rule.structure
        evaluation = Evaluation.of(structure, structure.to_matrix(point), value)
        error = tf.stop_gradient(rule.error(evaluation))
        status = first_status(error, is_usable)
        status, _ = rule.update(status, error, evaluation, ())
        has_failed = tf.equal(status, DIVERGED)
        infinite = tf.constant(float("inf"), error.dtype)
        return Solution(
            value=where_rows(has_failed, point, value),
            point=point,
            residual=tf.where(has_failed, infinite, error),
            status=tf.cast(status, tf.int32),
            num_evaluations=tf.ones_like(status, tf.int32),
            batch_evaluations=tf.constant(1),
            trace=error[None][:0],
        )

    def take(self, state: LoopState, rows: tf.Tensor) -> LoopState:
        """Returns the loop state of some samples.

        Args:
            state: A `LoopState`.
            rows: Int32 tensor `(samples,)`.
        """
        by_sample = {
            name: tree.map_structure(lambda leaf: tf.gather(leaf, rows), leaves)
            for name, leaves in state._asdict().items()
            if name not in ("num_evaluations", "limit", "memory", "trace")
        }
        return state._replace(
            **by_sample,
            memory=self.take_memory(
                state.memory,
                rows,
                # No step follows the last evaluation.
                tf.where(state.is_running, state.num_evaluations, 0),
            ),
            trace=tree.map_structure(
                lambda trace: tf.gather(trace, rows, axis=1), state.trace
            ),
        )

    def take_memory(self, memory: Any, rows: tf.Tensor, num_steps: tf.Tensor) -> Any:
        """Returns the memory of some samples.

        Args:
            memory: Result of `init` or `step`.
            rows: Int32 tensor `(samples,)`.
            num_steps: Int32 scalar tensor. Number of steps in the memory. 0 if the loop
                has ended.
        """
        del num_steps
        return tree.map_structure(lambda leaf: tf.gather(leaf, rows), memory)

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> Nest:
        """Returns the memory (a nest of tensors) before the first evaluation.

        The default is an empty memory.

        Args:
            point: Tensor `(batch, features)`. Point of the first evaluation.
            max_iter: Integer or scalar tensor. Budget of this solve.
        """
        return ()

    def step(
        self, evaluation: Evaluation, memory: Any, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        """Returns the next point and the new memory, without evaluating f.

        Args:
            evaluation: The newest `Evaluation`.
            memory: Result of `init` or of the last `step`.
            num_evaluations: Int32 scalar tensor. Number of evaluations so far.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement "
            "`step(evaluation, memory, num_evaluations)`, which returns the next point "
            "and the memory."
        )

    def perturbed(
        self, point: tf.Tensor, num_evaluations: tf.Tensor, seed: tf.Tensor | None
    ) -> tf.Tensor:
        """Adds the solver's noise to a point. Without a seed, returns the point.

        Args:
            point: Float tensor.
            num_evaluations: Int32 scalar tensor. Each count draws different noise.
            seed: Optional int32 tensor of shape `(2,)`.
        """
        if self.noise == 0.0 or seed is None:
            return point
        return point + self.noise * normal(
            tf.shape(point), fold_in(seed, num_evaluations), dtype=point.dtype
        )

    def stopping_rule(self, request: SolveRequest) -> StoppingRule:
        """Returns the rule that decides when a sample of a solve stops.

        Args:
            request: A `SolveRequest` with an initial state.
        """
        tol = self.tol if request.tol is None else _checked_tol(request.tol)
        structure = StateStructure(request.initial_state)
        takes_last = request.takes_last
        if takes_last is None:
            takes_last = True if request.halting is not None else _is_none(tol)
        tol = None if tol is None else _as_scalar(tol, structure.dtype)
        return StoppingRule(structure, self.stop_mode, tol, request.halting, takes_last)

    def get_config(self) -> Config:
        return arguments_of(self, FixedPointSolver)

    def _start(
        self,
        rule: StoppingRule,
        max_iter: int | tf.Tensor,
        budget: int | tf.Tensor,
        request: SolveRequest,
        is_usable: tf.Tensor | None,
    ) -> LoopState:
        point = rule.structure.to_matrix(rule.structure.template)
        best_error = _filled(point, float("inf"), point.dtype)
        status = first_status(best_error, is_usable)
        # The loop evaluates unusable samples once, but does not wait for them.
        is_excluded = tf.not_equal(status, MAX_ITER)
        state = LoopState(
            num_evaluations=tf.constant(0),
            limit=tf.convert_to_tensor(budget),
            next_point=point,
            memory=self.init(point, max_iter),
            best_point=point,
            best_value=point,
            best_error=best_error,
            status=status,
            sample_evaluations=tf.cast(is_excluded, status.dtype),
            trace=_empty_trace(point, max_iter) if request.records_trace else (),
            readouts=rule.start(),
            states=(),
        )
        return state._replace(
            states=snapshots.start(request.num_states, LoopResult.of(state))
        )

    def _advance(
        self,
        state: LoopState,
        evaluation: Evaluation,
        rule: StoppingRule,
        rounds: "_Rounds",
        request: SolveRequest,
    ) -> LoopState:
        # The error only controls the loop. Its square root has an infinite derivative
        # at 0.
        error = tf.stop_gradient(rule.error(evaluation))
        is_active = tf.equal(state.status, MAX_ITER)
        better = is_active & rule.is_better(error, state.best_error)
        best_point, best_value = rounds.take_better(better, evaluation, state)
        status, readouts = rule.update(state.status, error, evaluation, state.readouts)
        num_evaluations = state.num_evaluations + 1
        limit = rounds.limit(status) if rounds.checks_each else state.limit
        is_running = num_evaluations < limit
        next_point, memory = rounds.next(
            lambda: self._next(evaluation, state.memory, num_evaluations, request.seed),
            (state.next_point, state.memory),
            is_running,
        )
        trace = state.trace
        if tf.is_tensor(trace):
            rows = tf.range(tf.shape(trace, tf.int64)[0])[:, None]
            is_row = tf.equal(rows, tf.cast(state.num_evaluations, tf.int64))
            trace = tf.where(is_row & is_active[None], error[None], trace)
        advanced = LoopState(
            num_evaluations=num_evaluations,
            limit=limit,
            next_point=next_point,
            memory=memory,
            best_point=best_point,
            best_value=best_value,
            best_error=tf.where(better, error, state.best_error),
            status=status,
            sample_evaluations=(
                state.sample_evaluations + tf.cast(is_active, status.dtype)
            ),
            trace=trace,
            readouts=readouts,
            states=state.states,
        )
        states = snapshots.updated(
            state.states,
            LoopResult.of(advanced),
            num_evaluations,
            rounds.budget,
            ~is_running,
        )
        return advanced._replace(states=states)

    def _solution(
        self, state: LoopState, rule: StoppingRule, has_states: bool = False
    ) -> Solution:
        structure = rule.structure
        is_recorded = tf.is_tensor(state.trace)
        solution = Solution(
            value=structure.to_state(state.best_value),
            point=structure.to_state(state.best_point),
            residual=state.best_error,
            status=tf.cast(state.status, tf.int32),
            num_evaluations=tf.cast(state.sample_evaluations, tf.int32),
            batch_evaluations=state.num_evaluations,
            trace=state.trace if is_recorded else state.best_error[None][:0],
        )
        if not has_states:
            return solution
        earlier = [
            self._solution(state._replace(trace=(), **result._asdict()), rule)
            for result in state.states
        ]
        last = solution._replace(trace=state.best_error[None][:0])
        return solution._replace(states=(*earlier, last))

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
        """Returns the result of `step`. Raises `ValueError` if a loop cannot use it."""
        old, new = _specs((old_point, old_memory)), _specs(step)
        if not _is_like(old, new):
            raise ValueError(
                f"`{type(self).__name__}.step` must return the next point and the "
                "memory, with the structure, shapes and dtypes that it was given. "
                f"Expected: {old}. Received: {new}."
            )
        return step


def _interval(checkpoints: int | None, max_iter: int | tf.Tensor) -> int | None:
    """Returns the number of evaluations between two stored states, or `None`."""
    if checkpoints is None:
        return None
    if tf.is_tensor(max_iter):
        raise ValueError(
            "`checkpoints` needs a budget that is known when the solve is traced. Use "
            f"an integer `max_iter`. Received: {checkpoints=}, max_iter={max_iter}."
        )
    return -(-max_iter // checkpoints)


class _Rounds(NamedTuple):
    """Limits how often the host waits for the device during a loop.

    A predicate that depends on samples makes the host wait for a GPU. Each evaluation
    has two: whether a sample runs, and whether all improve. Counters are on the host.

    Attributes:
        budget: Integer or int32 scalar tensor of evaluations.
        check_every: Integer. Number of evaluations between two checks.
        can_stop: Boolean. Whether the loop may end before the budget. Otherwise the
            loop only counts, so that XLA knows its number of iterations.
        is_whole: Boolean. Whether the budget is the maximum of the loop's iterations.
    """

    budget: int | tf.Tensor
    check_every: int
    can_stop: bool
    is_whole: bool

    def continues(self, state: LoopState) -> tf.Tensor:
        """Returns whether another round follows."""
        if self.can_stop:
            return state.is_running
        if self.is_whole and graphs.is_compiled_by_xla():
            # The maximum ends the loop. XLA does not count loops with two conditions.
            return tf.constant(True)
        return state.num_evaluations < self.budget

    def run(
        self, body: Callable[..., tuple], state: LoopState, batch: Any
    ) -> tuple[LoopState, Any]:
        """Returns the variables of the loop after a round."""
        if self.check_every == 1 or not self.can_stop:
            return body(state, batch)
        end = tf.minimum(state.num_evaluations + self.check_every, self.budget)
        state, batch = graphs.while_loop(
            lambda state, _: state.num_evaluations < end,
            body,
            (state, batch),
            self.check_every,
        )
        return state._replace(limit=self.limit(state.status)), batch

    @property
    def checks_each(self) -> bool:
        """Whether each evaluation checks if all samples are done."""
        return self.can_stop and self.check_every == 1

    def limit(self, status: tf.Tensor) -> tf.Tensor:
        """Returns the budget, or 0 if all samples are done."""
        # A product of integers is on the host, where both the loop and the branch of
        # the step read it. Each would copy a Boolean tensor from the device.
        is_active = tf.reduce_any(tf.equal(status, MAX_ITER))
        return self.budget * tf.cast(is_active, tf.int32)

    def next(
        self,
        step: Callable[[], tuple[tf.Tensor, Any]],
        old: tuple[tf.Tensor, Any],
        is_running: tf.Tensor,
    ) -> tuple[tf.Tensor, Any]:
        """Returns the result of `step`, or `old` if no evaluation follows.

        XLA would copy the whole memory into and out of a branch. Under XLA, the step
        is therefore also computed after the last evaluation, but not used.
        """
        if graphs.is_compiled_by_xla():
            return step()
        return tf.cond(is_running, step, lambda: old)

    def take_better(
        self, better: tf.Tensor, evaluation: Evaluation, state: LoopState
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the best point and value of each sample.

        If all samples improve, a branch passes the tensors by reference. XLA would copy
        them, and needs shapes that a branch does not know.
        """
        newest = (evaluation.point, evaluation.value)
        best = (state.best_point, state.best_value)
        if self.check_every > 1 or graphs.is_compiled_by_xla():
            return where_rows(better, newest, best)
        return tf.cond(
            tf.reduce_all(better),
            lambda: newest,
            lambda: where_rows(better, newest, best),
        )


def _specs(step: Any) -> Any:
    def spec(leaf: Any) -> Any:
        if tf.is_tensor(leaf):
            return tf.TensorSpec(leaf.shape, leaf.dtype)
        # In eager mode, TensorFlow wraps `TensorArray`s in another class.
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
    # Casting a larger integer would wrap around to an empty budget.
    budget = tf.minimum(budget, min(budget.dtype.max, _INT32))
    return tf.cast(tf.maximum(budget, 1), tf.int32)


def _checked_budget(
    budget: int | tf.Tensor, max_iter: int | tf.Tensor
) -> int | tf.Tensor:
    if tf.is_tensor(budget):
        return tf.cast(budget, tf.int32)
    limit = _INT32 if tf.is_tensor(max_iter) else max_iter
    return check_integer("budget", budget, 1, limit)


def _checked_tol(tol: float | tf.Tensor | None) -> float | tf.Tensor | None:
    if tol is None or tf.is_tensor(tol):
        return tol
    return check_non_negative("tol", tol)
