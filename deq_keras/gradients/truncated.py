"""Backpropagation through the last steps, which also compute the output."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core import checkpointing, graphs, nonfinite
from deq_keras.core.checks import (
    check_fraction,
    check_non_negative,
    check_optional_count,
    check_positive_fraction,
)
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import as_seed, fold_in, normal, split, uniform
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    interpolate,
    squared_norm,
    where_rows,
)
from deq_keras.gradients import step_counts
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.gradient import (
    Attachment,
    EquilibriumGradient,
    SecondOrderLimit,
)
from deq_keras.gradients.neumann import NeumannGradient
from deq_keras.gradients.phantom import PhantomGradient
from deq_keras.gradients.step_counts import NumSteps, StepCounts
from deq_keras.solvers import FixedPointSolver, SolveRequest

# Default range of the number of differentiated steps, and default fraction of samples
# that take free steps. Slow cells need many steps from any state. If information must
# travel between positions, models learn sooner from a few steps from the start.
_FEWEST_STEPS, _MOST_STEPS = 6, 12
_FREE_FRACTION = 0.3
# Default tolerance of the default number of steps.
_TOL = 0.01
# Default `max_steps`, in budgets of the solver: results must stay correct beyond one.
_NUM_BUDGETS = 2


@keras.saving.register_keras_serializable(package="deq_keras")
class TruncatedGradient(EquilibriumGradient):
    """Differentiates the last steps of f and returns the state that they reach.

        h_0 = z_0, or z_n: after n such steps without gradient, plus noise
        h_{t+1} = f(h_t, u)    for k steps; the output is h_k

    The gradient is exact for the computed steps, whether or not they converged, so it
    can train tasks that propagate information over long distances. Samples that start
    at z_0 learn to reach a result; samples that start at z_n learn to keep it. Each
    training step draws n. Both kinds of steps stop early if the batch has converged.
    Memory grows with k, not with n. The noise and, unless `damping` is given, the
    damping of a `FixedPointIteration` solver apply to all steps; other solvers do not
    affect the steps. (`PhantomGradient` combines the derivative of h_k with the value
    f(z*); at an equilibrium the two agree.)

    The solution reports the residual of h_k. One evaluation of f serves the residual
    and the penalty of a regularizer. With a tolerance, the penalty applies if the batch
    converged, and otherwise to the samples that took as many steps as the solver's
    budget: other samples need not be at an equilibrium yet.

    Outside of training, nothing is random: the solver spends its whole budget, and the
    gradient is a `NeumannGradient` with one term less than the largest k.

    Args:
        num_steps: Number k of differentiated steps. A positive integer; `"uniform"` or
            `"log_uniform"`, drawn from 1 to `max_steps - n`; a sequence of weights, the
            relative probabilities of 1, 2, ... steps; or `None`: 12 if the state has no
            positions, that is `(batch, features)`, and otherwise drawn from 6 to 12, or
            as many as `max_steps` allows. Defaults to `None`.
        num_free_steps: Number n of steps without gradient. An integer >= 0;
            `"uniform"` or `"log_uniform"` (probability about 1 / (n + 1)), drawn from 0
            to `max_steps - k`; or a sequence of weights, the relative probabilities of
            0, 1, ... steps. Defaults to `"uniform"`.
        max_steps: Positive integer, at least n + k, for any budget of a call. `None`:
            twice the budget, so that results stay correct beyond it. Defaults to
            `None`.
        free_fraction: Float in [0, 1]. Fraction of the samples, drawn in each training
            step, that take the free steps. `None`: 1 if the state has no positions,
            because then no information has to travel first, else 0.3. Defaults to
            `None`.
        free_noise: Float >= 0. Standard deviation of the noise that is added after the
            free steps, relative to the root mean square over the last axis. The
            following steps learn to remove it. Defaults to `0.3`.
        damping: Float in (0, 1]. Weight of f in each step. A model trained with whole
            steps (`1.0`) can be solved with half steps, which converge where whole
            steps oscillate. `None`: the damping of the solver. Defaults to `None`.
        tol: Float >= 0. Both kinds of steps stop early if the root mean square of the
            batch's relative residuals is at most `tol`. Fast cells then cost fewer
            steps than slow cells. `None`: 0.01 if `num_steps` is `None`, else 0, so
            that all steps are taken. Defaults to `None`.
        checkpoints: Positive integer c. The backward pass evaluates f a second time, so
            that memory holds c states and the activations of 1 / c of the largest k.
            With c = k or more, these are the activations of one evaluation; the square
            root of k needs the least memory if a state is as large as its activations.
            Defaults to `None`: memory holds all activations.

    Raises:
        ValueError: If n + k may be larger than `max_steps`.

    Example:

    >>> gradient = deq_keras.gradients.TruncatedGradient(num_steps=8)

    Reference:

    - Bansal et al. (2022), "End-to-end Algorithm Synthesis with Recurrent Networks:
      Logical Extrapolation Without Overthinking" (all samples take the free steps, and
      n and k are uniform: `TruncatedGradient("uniform", free_fraction=1.0)`).
    """

    differentiates_iterates = True
    uses_solver = False
    is_random = True

    def __init__(
        self,
        num_steps: NumSteps | None = None,
        num_free_steps: NumSteps = step_counts.UNIFORM,
        max_steps: int | None = None,
        free_fraction: float | None = None,
        free_noise: float = 0.3,
        damping: float | None = None,
        tol: float | None = None,
        checkpoints: int | None = None,
    ) -> None:
        self.num_steps = num_steps
        self.num_free_steps = num_free_steps
        self._free_counts = step_counts.parse("num_free_steps", num_free_steps, 0)
        self._step_counts = None
        if num_steps is not None:
            self._step_counts = step_counts.parse("num_steps", num_steps, 1)
        self.max_steps = check_optional_count("max_steps", max_steps)
        self.free_fraction = (
            None
            if free_fraction is None
            else check_fraction("free_fraction", free_fraction)
        )
        self.free_noise = check_non_negative("free_noise", free_noise)
        self.damping = (
            None if damping is None else check_positive_fraction("damping", damping)
        )
        self.tol = None if tol is None else check_non_negative("tol", tol)
        self.stops_early = num_steps is None if tol is None else tol > 0
        self.checkpoints = check_optional_count("checkpoints", checkpoints)
        if self._free_counts.may_exceed_zero and free_fraction != 0.0:
            reason = "its free steps are constants"
            self.second_order_limit = SecondOrderLimit(reason, is_refused=False)
        self._counts(self.max_steps)

    def attach(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Attachment:
        initial_state = request.initial_state
        plan = self._plan(initial_state, solver)
        seeds = split(as_seed(request.seed), 5)
        num_free_steps, num_steps = self._draw(plan, request.max_iter, *seeds[:2])

        # 1. Free steps bring some samples near the equilibrium, without gradient.
        start, failed, num_evaluations = _free_steps(
            problem, initial_state, num_free_steps, plan, self.free_noise, *seeds[2:4]
        )

        # 2. All samples take the differentiated steps.
        state, failed_now, count = _take_steps(
            problem, start, num_steps, plan, seeds[4], plan.interval
        )
        failed |= failed_now
        value = where_rows(failed, start, state)

        # 3. One more evaluation serves the residual and the penalty of the regularizer.
        # It has a gate of its own, because it may be the first non-finite one.
        gate = nonfinite.GradientGate()
        point = tree.map_structure(tf.stop_gradient, value)
        linearization = problem.through(gate).linearize(point)
        # The steps stop at their own tolerance, so it defines convergence.
        tol = max(plan.tol or 0.0, solver.tol or 0.0) or None
        solution = solver.assess(point, linearization.value, failed, tol)
        excluded = nonfinite.has_failed(solution)
        gate.close_if(excluded, problem.is_usable)
        num_evaluations += count
        if plan.tol is not None:
            # Samples that stopped early, or took few steps, need not have converged.
            budget = solver.max_iter if request.max_iter is None else request.max_iter
            has_budget = num_evaluations >= tf.minimum(budget, plan.largest_sum)
            excluded |= ~(has_budget | (count < num_steps))
        solution = tree.map_structure(tf.stop_gradient, solution)._replace(
            num_evaluations=num_evaluations,
            # The maximum over an empty batch is not a number of steps.
            batch_evaluations=tf.maximum(tf.reduce_max(num_evaluations), 0),
        )
        return Attachment(value, solution, linearization, failed, excluded)

    def outside_training(self, solver: FixedPointSolver) -> EquilibriumGradient:
        # A trained model may be used with any budget, so none is checked here.
        max_steps = self.max_steps or _NUM_BUDGETS * solver.max_iter
        num_terms = self._counts(self.max_steps)[1].largest(max_steps) - 1
        return NeumannGradient(num_terms) if num_terms else PhantomGradient(1, 1.0)

    def get_config(self) -> Config:
        return arguments_of(self, TruncatedGradient)

    def fewest_steps(self, state: Nest, solver: FixedPointSolver) -> int:
        plan = self._plan(state, solver)
        return plan.free_steps.fewest + plan.num_steps.fewest

    def _plan(self, state: Nest, solver: FixedPointSolver) -> "_Plan":
        """Returns all numbers of a solve, with defaults that suit its state."""
        has_positions = False
        for leaf in tree.flatten(state):
            has_positions |= leaf.shape.rank > 2
        max_steps = self.max_steps or _NUM_BUDGETS * solver.max_iter
        free_steps, num_steps = self._counts(max_steps)
        fraction, tol, interval = self.free_fraction, self.tol, None
        if fraction is None:
            fraction = _FREE_FRACTION if has_positions else 1.0
        if self.num_steps is None:
            most = num_steps.needed
            if has_positions:
                num_steps = step_counts.between(min(_FEWEST_STEPS, most), most)
            tol = _TOL if tol is None else tol
        if self.checkpoints is not None:
            interval = -(-num_steps.largest(max_steps) // self.checkpoints)
        most = num_steps.largest(max_steps)
        most += free_steps.largest(max_steps) if fraction > 0 else 0
        return _Plan(
            solver=solver,
            free_steps=free_steps,
            num_steps=num_steps,
            max_steps=max_steps,
            largest_sum=min(max_steps, most),
            free_fraction=fraction,
            damping=solver.damping if self.damping is None else self.damping,
            tol=None if graphs.is_vectorized() else tol or None,
            interval=interval,
        )

    def _counts(self, max_steps: int | None) -> tuple[StepCounts, StepCounts]:
        """Returns the numbers of free and of differentiated steps; checks that a known
        limit allows them."""
        free_steps, steps = self._free_counts, self._step_counts
        if steps is None:
            room = _MOST_STEPS if max_steps is None else max_steps - free_steps.needed
            steps = StepCounts(max(1, min(_MOST_STEPS, room)), (1.0,))
        if max_steps is not None and free_steps.needed + steps.needed > max_steps:
            raise ValueError(
                "`max_steps` must be at least the number of free steps plus the number "
                "of steps with a gradient. It defaults to twice the solver's "
                "`max_iter`. Expected: "
                f"num_free_steps + num_steps <= {max_steps}. Received: "
                f"num_free_steps={self.num_free_steps!r}, num_steps={self.num_steps!r}."
            )
        return free_steps, steps

    def _draw(
        self,
        plan: "_Plan",
        budget: tf.Tensor | None,
        free_seed: tf.Tensor | None,
        seed: tf.Tensor | None,
    ) -> tuple[int | tf.Tensor, int | tf.Tensor]:
        """Returns the numbers of steps without a gradient and with a gradient."""
        free_steps, steps = plan.free_steps, plan.num_steps
        fraction = plan.free_fraction
        has_free_steps = free_steps.is_random or free_steps.smallest > 0
        draws_samples = 0 < fraction < 1 or (fraction > 0 and self.free_noise > 0)
        is_random = steps.is_random or free_steps.is_random
        if seed is None and (is_random or (has_free_steps and draws_samples)):
            raise ValueError(
                "TruncatedGradient draws random numbers, and needs a `seed`."
            )
        room = plan.max_steps
        if budget is not None and self.max_steps is None:
            budget = _NUM_BUDGETS * budget
            room = tf.maximum(budget, free_steps.needed + steps.needed)
        num_free_steps = free_steps.draw(room - steps.needed, free_seed)
        return num_free_steps, steps.draw(room - num_free_steps, seed)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The numbers of a solve.

    Attributes:
        solver: The `FixedPointSolver`, whose noise applies to all steps.
        free_steps: `StepCounts` of steps without a gradient.
        num_steps: `StepCounts` of steps with a gradient.
        max_steps: Integer. Upper bound of their sum.
        largest_sum: Integer. The largest number of steps of a sample.
        free_fraction: Float in [0, 1]. Expected fraction of samples with free steps.
        damping: Float in (0, 1]. Weight of the new value in a step.
        tol: Positive float, or `None` to take all steps.
        interval: Positive integer. Steps between two states that the gradient stores;
            it recomputes the others. `None`: the gradient stores the activations.
    """

    solver: FixedPointSolver
    free_steps: StepCounts
    num_steps: StepCounts
    max_steps: int
    largest_sum: int
    free_fraction: float
    damping: float
    tol: float | None
    interval: int | None


def _take_steps(
    problem: FixedPointProblem,
    state: Nest,
    num_steps: int | tf.Tensor,
    plan: _Plan,
    seed: tf.Tensor | None,
    interval: int | None = None,
) -> tuple[Nest, tf.Tensor, int | tf.Tensor]:
    """Returns the state after some steps, a mask of samples that became non-finite, and
    the number of steps.

    Args:
        problem: The `FixedPointProblem`.
        state: Nest of `(batch, ...)` tensors.
        num_steps: Integer or int32 scalar tensor. The largest number of steps.
        plan: The `_Plan`.
        seed: Int32 tensor of shape `(2,)`, or `None` without noise.
        interval: See `_Plan`.
    """
    noise_seed = seed if plan.solver.noise else None
    structure = StateStructure(state)

    def continues(
        i: tf.Tensor, state: Nest, failed: tf.Tensor, residual: tf.Tensor
    ) -> tf.Tensor:
        has_steps = i < num_steps
        return has_steps if plan.tol is None else has_steps & (residual > plan.tol)

    def body(
        i: tf.Tensor, state: Nest, failed: tf.Tensor, residual: tf.Tensor
    ) -> tuple[tf.Tensor, Nest, tf.Tensor, tf.Tensor]:
        # 1. Evaluate f, and take the damped step with the noise of the solver.
        value = problem(state)
        leaves = []
        for j, (old, new) in enumerate(
            zip(tree.flatten(state), tree.flatten(value), strict=True)
        ):
            if plan.damping < 1.0:
                new = interpolate(old, new, plan.damping)
            if noise_seed is not None:
                new = plan.solver.perturb(new, i, fold_in(noise_seed, j))
            leaves.append(new)
        next_state = tree.pack_sequence_as(state, leaves)
        failed |= nonfinite.failed_rows(next_state)

        # 2. With a tolerance, compute the root mean square of the relative residuals of
        # finite samples.
        if plan.tol is not None:
            old, new = tree.map_structure(tf.stop_gradient, (state, value))
            matrix = structure.to_matrix(new)
            scale = squared_norm(matrix)
            squares = squared_norm(matrix - structure.to_matrix(old))
            squares = tf.where(scale > 0, squares / scale, squares)
            total, count = nonfinite.finite_total(squares, "float32")
            # TensorFlow would also trace the gradient of this loop variable.
            residual = tf.stop_gradient(tf.sqrt(tf.math.divide_no_nan(total, count)))
        return i + 1, next_state, failed, residual

    failed = tf.zeros_like(nonfinite.failed_rows(state))
    count, state, failed, _ = checkpointing.loop(
        continues,
        body,
        (tf.constant(0), state, failed, tf.constant(tf.float32.max)),
        plan.max_steps,
        interval,
        () if interval is None else problem.sources(state),
    )
    return state, failed, num_steps if plan.tol is None else count


class _FreeResult(NamedTuple):
    """Samples after their free steps.

    Attributes:
        state: Nest of `(batch, ...)` tensors. Samples without free steps, and samples
            that failed, keep their initial state.
        failed: Boolean tensor `(batch,)`. Samples with non-finite steps.
        num_evaluations: Int32 tensor `(batch,)`.
    """

    state: Nest
    failed: tf.Tensor
    num_evaluations: tf.Tensor


def _free_steps(
    problem: FixedPointProblem,
    initial_state: Nest,
    num_steps: int | tf.Tensor,
    plan: _Plan,
    noise: float,
    noise_seed: tf.Tensor | None,
    seed: tf.Tensor | None,
) -> _FreeResult:
    """Takes steps without gradient for a fraction of the samples, and adds noise.

    Samples without free steps keep the gradient of their initial state.

    Args:
        problem: The `FixedPointProblem`.
        initial_state: Nest of `(batch, ...)` tensors.
        num_steps: Integer or int32 scalar tensor.
        plan: The `_Plan`.
        noise: Float >= 0. Standard deviation of the noise after the steps, relative to
            the root mean square of the features of each position.
        noise_seed: Int32 tensor of shape `(2,)` for the noise of the solver, or `None`
            if nothing is random.
        seed: The same for all other draws.
    """
    start, injection = tree.map_structure(
        tf.stop_gradient, (initial_state, problem.injection)
    )
    problem = problem.bound(injection, weights=None)
    batch_size = tf.shape(tree.flatten(start)[0])[:1]
    unchanged = _FreeResult(
        start, tf.zeros(batch_size, tf.bool), tf.zeros(batch_size, tf.int32)
    )
    if plan.free_fraction == 0.0 or (not tf.is_tensor(num_steps) and num_steps == 0):
        return unchanged._replace(state=initial_state)

    def take_steps(problem: FixedPointProblem, state: Nest) -> _FreeResult:
        last, failed, count = _take_steps(problem, state, num_steps, plan, noise_seed)
        if noise > 0.0:
            last = _with_noise(last, noise, fold_in(seed, 3))
        return _FreeResult(
            where_rows(failed, state, last), failed, tf.fill(tf.shape(failed), count)
        )

    # 1. Choose random samples: a fixed number, because shapes must not depend on draws.
    # 2. Step them alone, with their rows of the injection, if these are known.
    # 3. Write the results into the batch; the other samples keep the initial state.
    def take_steps_for_some() -> _FreeResult:
        order = tf.argsort(uniform(batch_size, fold_in(seed, 1)))
        chosen = order[:num_chosen]
        if not problem.knows_rows:  # The injection of single samples is unknown.
            rows = tf.range(batch_size[0])[:, None]
            is_chosen = tf.reduce_any(tf.equal(rows, chosen), axis=1)
            return where_rows(is_chosen, take_steps(problem, start), unchanged)
        rows = tree.map_structure(lambda leaf: tf.gather(leaf, chosen), start)
        return tree.map_structure(
            lambda leaf, rows: tf.tensor_scatter_nd_update(leaf, chosen[:, None], rows),
            unchanged,
            take_steps(problem.rows(chosen), rows),
        )

    if plan.free_fraction == 1.0:
        result = take_steps(problem, start)
    else:
        # A draw decides whether the chosen samples take the steps at all, so that the
        # expected fraction is exact.
        static_size = tree.flatten(start)[0].shape[0]
        if static_size is not None:
            num_chosen = math.ceil(plan.free_fraction * static_size)
            probability = plan.free_fraction * static_size / max(num_chosen, 1)
        else:
            expected = plan.free_fraction * tf.cast(batch_size[0], tf.float32)
            count = tf.math.ceil(expected)
            num_chosen = tf.cast(count, tf.int32)
            probability = expected / tf.maximum(count, 1.0)
        is_drawn = uniform((), fold_in(seed, 0)) < probability
        result = tf.cond(
            (tf.convert_to_tensor(num_steps) > 0) & is_drawn,
            take_steps_for_some,
            lambda: unchanged,
        )
    # The steps have no gradient, so TensorFlow need not differentiate them.
    result = tree.map_structure(tf.stop_gradient, result)
    state = where_rows(result.num_evaluations > 0, result.state, initial_state)
    return result._replace(state=state)


def _with_noise(state: Nest, noise: float, seed: tf.Tensor) -> Nest:
    """Adds noise to a state, relative to the root mean square of each position, which
    is 0 at padding."""
    leaves = tree.flatten(state)
    for i, leaf in enumerate(leaves):
        axis = [-1] if leaf.shape.rank > 1 else []
        squares = tf.square(tf.cast(leaf, tf.float32))
        scale = tf.sqrt(tf.reduce_mean(squares, axis, keepdims=True))
        draw = normal(tf.shape(leaf), fold_in(seed, i), leaf.dtype)
        leaves[i] = leaf + noise * tf.cast(scale, leaf.dtype) * draw
    return tree.pack_sequence_as(state, leaves)
