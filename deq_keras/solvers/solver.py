"""Base class of fixed-point solvers, which owns their loop."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core import checkpointing, graphs, nonfinite
from deq_keras.core.checks import (
    check_boolean,
    check_choice,
    check_integer,
    check_non_negative,
)
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import as_seed, fold_in, normal
from deq_keras.core.request import INT32, SolveRequest, check_request
from deq_keras.core.serialization import Config, Configured, arguments_of
from deq_keras.core.structure import Nest, StateStructure, where_rows
from deq_keras.solvers.compaction import ActiveBatch
from deq_keras.solvers.loop import LoopState
from deq_keras.solvers.solution import DIVERGED, MAX_ITER, Solution
from deq_keras.solvers.stopping import (
    STOP_MODES,
    Evaluation,
    StoppingRule,
    first_status,
)


class FixedPointSolver(Configured):
    """Finds z with z = f(z) for every sample of a batch.

    The base class owns the loop: it evaluates f once per iteration, tracks each
    sample's residual, best iterate and status, and stops when all samples are done.
    Subclasses implement only the update between two evaluations: `init` and `step`.

    Samples are independent: a converged or non-finite sample is frozen, and its result
    depends on the other samples by rounding only. (The reference, locuslab/deq of Bai
    et al., 2019, stops, and selects the best iterate, for the whole batch at once.)
    A solve that does not converge does not raise an error; check its status.

    Args:
        max_iter: Positive integer. Budget of function evaluations (NFE). Defaults to
            `30`.
        tol: Non-negative float or `None`. A sample converges when its residual is at
            most `tol`. `None` uses the whole budget and returns the last iterate, also
            if a request has a tolerance. Otherwise the result is the iterate with the
            smallest residual. Defaults to `1e-3`.
        stop_mode: `"rel"` for |f(z) - z| / |f(z)| or `"abs"` for |f(z) - z|, with the
            Euclidean norm over one sample's whole state. `"rel_max"` and `"abs_max"`
            use the largest norm over positions (tokens, pixels). Use them if
            information travels between positions: a norm over the whole state hides the
            few positions that still change. With a relative residual, a state that
            grows without limit does not converge. Defaults to `"rel"`.
        compact: Boolean. Whether to remove converged samples from the batch in solves
            outside of training. The cost then depends on the mean number of evaluations
            instead of the maximum. Results do not change. Keras does not use XLA for
            models with compact solvers. Defaults to `False`.

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
    ) -> None:
        # Only requests may contain tensors, which configs could not hold.
        self.max_iter = check_integer("max_iter", max_iter, 1, INT32)
        self.tol = None if tol is None else check_non_negative("tol", tol)
        self.stop_mode = check_choice("stop_mode", stop_mode, STOP_MODES)
        self.compact = check_boolean("compact", compact)

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
        problem, request = FixedPointProblem.of(problem), check_request(request)
        seed = None if request.seed is None else as_seed(request.seed)
        rule, options = self.stopping_rule(request), request.loop
        budget = self.max_iter if request.max_iter is None else request.max_iter
        by_xla, is_vectorized = is_compiled_by_xla(), graphs.is_vectorized()
        is_step_checked = False
        largest = budget  # Determines shapes.
        if tf.is_tensor(budget) and options.limit is not None:
            largest = options.limit
            budget = tf.minimum(budget, largest)
        # Only loops of a known length have a gradient under XLA.
        most = None if tf.is_tensor(largest) else largest
        # Noise depends on the row of a sample, so a solve with noise keeps all rows.
        is_compact = (
            self.compact
            and not is_vectorized
            and options.allows_compaction
            and seed is None
            and problem.has_rows is not None
            and options.checkpoints is None
        )
        can_stop = (is_compact or rule.can_stop) and not is_vectorized
        state = self._first_state(rule, largest, budget, request, problem.is_usable)
        interval = None
        if options.checkpoints is not None:
            interval = -(-self._static(largest) // options.checkpoints)
            problem = problem.bound(problem.injection, weights=problem.weights)

        def advance(
            state: LoopState, problem: FixedPointProblem, rule: StoppingRule
        ) -> LoopState:
            # 1. Evaluate f at the point that the last step chose.
            structure, old = rule.structure, state.results
            value = problem(structure.to_state(state.next_point))
            evaluation = Evaluation.of(structure, state.next_point, value)
            count = old.batch_evaluations + 1

            # 2. Judge every sample that is not done, and keep its best iterate.
            results, budget_if_running, progress = rule.update(
                evaluation, old, state.progress, budget, state.budget_if_running
            )
            if not can_stop:
                budget_if_running = state.budget_if_running

            # 3. Choose the next point; after the last evaluation, only if a step costs
            # less than a branch. XLA would copy the memory into a branch.
            def step() -> tuple[tf.Tensor, Any]:
                nonlocal is_step_checked
                result = self.step(evaluation, state.memory, count)
                if not is_step_checked:
                    self._check_step(result, evaluation.point, state.memory)
                    is_step_checked = True
                next_point, memory = result
                return self.perturb(next_point, count, seed), memory

            unchanged = (state.next_point, state.memory)
            next_point, memory = (
                step()
                if rule.is_branchless or not tree.flatten(state.memory)
                else tf.cond(count < budget_if_running, step, lambda: unchanged)
            )
            return LoopState(results, budget_if_running, next_point, memory, progress)

        def body(
            state: LoopState, batch: ActiveBatch | tuple[()]
        ) -> tuple[LoopState, ActiveBatch | tuple[()]]:
            if not batch:
                return advance(state, problem, rule), ()
            structure = rule.structure.resize(tf.size(batch.indices))
            active_rule = rule._replace(structure=structure)
            state = advance(state, batch.problem(problem), active_rule)
            return batch.without_done(problem, state, self.take_memory)

        def continues(state: LoopState, _: Any) -> tf.Tensor:
            if can_stop:
                return state.results.batch_evaluations < state.budget_if_running
            if by_xla and interval is None and not tf.is_tensor(budget):
                # The maximum ends the loop. XLA does not count loops with two
                # conditions.
                return tf.constant(True)
            return state.results.batch_evaluations < budget

        variables: Any = (state, ())
        if is_compact:
            variables = ActiveBatch.of(problem, state, self.take_memory)
        if interval is None:
            state, batch = graphs.while_loop(continues, body, variables, most)
        else:
            state, batch = checkpointing.loop(
                continues,
                body,
                variables,
                most,
                interval,
                problem.sources(request.initial_state),
            )
        results = batch.results if batch else state.results
        structure, count = rule.structure, state.results.batch_evaluations
        num_evaluations = tf.where(
            tf.equal(results.status, MAX_ITER),
            tf.cast(count, tf.int64),
            results.num_evaluations,
        )
        # Samples without a finite evaluation overflow to infinity.
        residual = results.residual
        largest_number = tf.constant(residual.dtype.max, residual.dtype)
        residual += tf.where(residual >= largest_number, largest_number, 0.0)
        return results._replace(
            value=structure.to_state(results.value),
            point=structure.to_state(results.point),
            residual=residual,
            status=tf.cast(results.status, tf.int32),
            num_evaluations=tf.cast(num_evaluations, tf.int32),
            batch_evaluations=count,
            trace=results.trace
            if tf.is_tensor(results.trace)
            else results.residual[None][:0],
        )

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> Nest:
        """Returns the memory (a nest of tensors) before the first evaluation.

        The default is an empty memory.

        Args:
            point: Tensor `(batch, features)`. Point of the first evaluation.
            max_iter: Integer or scalar tensor. Budget of this solve.
        """
        return ()

    def init_without_arrays(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> Nest:
        """Like `init`, for files whose format does not support arrays.

        A solver with a `tf.TensorArray` in its memory overrides it.

        Args:
            point: See `init`.
            max_iter: See `init`.
        """
        return self.init(point, max_iter)

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

    def state_of(self, problem: FixedPointProblem, iterate: Nest) -> Nest:
        """Returns the state of an iterate, which some solvers transform.

        Args:
            problem: The `FixedPointProblem`.
            iterate: Nest of `(batch, ...)` tensors.
        """
        del problem
        return iterate

    def perturb(
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
        structure = StateStructure(request.initial_state)
        tol: Any = self.tol if request.tol is None else request.tol
        takes_last = self.tol is None
        if tol is not None:
            is_tensor = tf.is_tensor(tol)
            dtype = structure.dtype
            tol = tf.cast(tol, dtype) if is_tensor else tf.constant(tol, dtype)
        is_branchless = is_compiled_by_xla() or graphs.is_vectorized()
        decisive = None if tol is None else tf.maximum(tol, 0.0)
        return StoppingRule(
            structure, self.stop_mode, tol, takes_last, is_branchless, decisive
        )

    def assess(
        self, point: Nest, value: Nest, failed: tf.Tensor, tol: float | None
    ) -> Solution:
        """Returns the `Solution` of a solve that stopped at `point`.

        Does not evaluate f. The status is `CONVERGED` if the residual is at most the
        tolerance, and `DIVERGED` if it is not finite.

        Args:
            point: Nest of `(batch, ...)` tensors.
            value: f(point), a nest like `point`.
            failed: Boolean tensor `(batch,)`. Samples that count as diverged.
            tol: Float >= 0, or `None`: no sample counts as converged.
        """
        rule = self.stopping_rule(SolveRequest(point, tol=0.0 if tol is None else tol))
        rule, structure = rule._replace(is_branchless=True), rule.structure
        evaluation = Evaluation.of(structure, structure.to_matrix(point), value)
        status = first_status(evaluation.squared_norm[:, 0], ~failed)
        # Nothing drifts in a single evaluation.
        progress = rule.start()._replace(residual=(), size=())
        error, status, _ = rule.judge(evaluation, status, progress)
        has_failed = tf.equal(status, DIVERGED)
        infinite = nonfinite.infinite_where(has_failed, error.dtype)
        return Solution(
            value=where_rows(has_failed, point, value),
            point=point,
            residual=tf.where(has_failed, infinite, error),
            status=tf.cast(status, tf.int32),
            num_evaluations=tf.ones_like(status, tf.int32),
            batch_evaluations=tf.constant(1),
            trace=error[None][:0],
        )

    def get_config(self) -> Config:
        return arguments_of(self, FixedPointSolver)

    def _first_state(
        self,
        rule: StoppingRule,
        largest: int | tf.Tensor,
        budget: int | tf.Tensor,
        request: SolveRequest,
        is_usable: tf.Tensor | None,
    ) -> LoopState:
        """Returns the variables of the loop before the first evaluation."""
        point = rule.structure.to_matrix(rule.structure.template)
        # Infinity would stop a function under `tf.debugging.enable_check_numerics`.
        largest_residual = tf.fill(tf.shape(point)[:1], point.dtype.max)
        largest_residual.set_shape(point.shape[:1])
        status = first_status(largest_residual, is_usable)
        trace: Any = ()
        if request.loop.records_trace:
            rows = tf.maximum(largest, 1) if tf.is_tensor(largest) else largest
            nan = tf.constant(float("nan"), point.dtype)
            trace = tf.fill([rows, tf.shape(point)[0]], nan)
            trace.set_shape([None if tf.is_tensor(rows) else rows, point.shape[0]])
        results = Solution(
            value=point,
            point=point,
            residual=largest_residual,
            status=status,
            # The loop evaluates unusable samples once, but does not wait for them.
            num_evaluations=tf.cast(tf.not_equal(status, MAX_ITER), tf.int64),
            batch_evaluations=tf.constant(0),
            trace=trace,
        )
        budget_if_running = tf.convert_to_tensor(budget)
        if is_usable is not None and rule.can_stop:
            budget_if_running *= tf.cast(tf.reduce_any(is_usable), tf.int32)
        if tf.is_tensor(largest) and request.loop.capacity is not None:
            largest = request.loop.capacity
        init = self.init if request.loop.allows_arrays else self.init_without_arrays
        memory = init(point, largest)
        progress = rule.start(is_usable)
        return LoopState(results, budget_if_running, point, memory, progress)

    def _check_step(self, step: Any, old_point: tf.Tensor, old_memory: Any) -> None:
        """Raises `ValueError` if a loop cannot use the result of `step`."""
        old, new = _specs((old_point, old_memory)), _specs(step)
        is_like = True
        try:
            tree.assert_same_structure(old, new)
        except (TypeError, ValueError):
            is_like = False
        if is_like:
            is_like = all(
                a.dtype == b.dtype and a.shape.is_compatible_with(b.shape)
                if isinstance(a, tf.TensorSpec) and isinstance(b, tf.TensorSpec)
                else a == b
                for a, b in zip(tree.flatten(old), tree.flatten(new), strict=True)
            )
        if not is_like:
            raise ValueError(
                f"`{type(self).__name__}.step` must return the next point and the "
                "memory, with the structure, shapes and dtypes that it was given. "
                f"Expected: {old}. Received: {new}."
            )

    @staticmethod
    def _static(max_iter: int | tf.Tensor) -> int:
        if tf.is_tensor(max_iter):
            raise ValueError(
                "`checkpoints` needs a budget that is known when the solve is traced. "
                f"Use an integer `max_iter`. Received: max_iter={max_iter}."
            )
        return max_iter


def _specs(step: Any) -> Any:
    def spec(leaf: Any) -> Any:
        if tf.is_tensor(leaf):
            return tf.TensorSpec(leaf.shape, leaf.dtype)
        # In eager mode, TensorFlow wraps `TensorArray`s in another class.
        return tf.TensorArray if isinstance(leaf, tf.TensorArray) else type(leaf)

    return tree.map_structure(spec, step)
