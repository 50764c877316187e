"""Backpropagation through the last steps, which also compute the output."""

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite, snapshots
from deq_keras.core.checks import (
    check_boolean,
    check_fraction,
    check_non_negative,
    check_optional_count,
    check_positive_fraction,
)
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.random import as_seed, fold_in
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import Nest, where_rows
from deq_keras.gradients import step_counts
from deq_keras.gradients.adjoint_report import AdjointReport
from deq_keras.gradients.forward import HigherOrder
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.gradients.neumann import NeumannGradient
from deq_keras.gradients.phantom import PhantomGradient
from deq_keras.gradients.step_counts import NumSteps, StepCounts
from deq_keras.gradients.steps import FreeSteps, Steps
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

    States along the solve are h_t, t = (i + 1) k / n rounded, with the derivative of
    all their steps.

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
        max_steps: Positive integer, at least n + k. `None`: twice the `max_iter` of the
            solver, so that results stay correct beyond its budget. Defaults to `None`.
        free_fraction: Float in [0, 1]. Fraction of the samples, drawn in each training
            step, that take the free steps. `None`: 1 if the state has no positions,
            because then no information has to travel first, else 0.3. Defaults to
            `None`.
        free_noise: Float >= 0. Standard deviation of the noise that is added after the
            free steps, relative to the root mean square over the last axis. The
            following steps learn to remove it. Defaults to `0.3`.
        remat: Boolean. Whether the backward pass evaluates f a second time. Then memory
            holds k states and the activations of one evaluation, at the cost of k more
            evaluations. Only the weights of a cell, the injection and the initial state
            get a gradient, not other tensors that f captures. Defaults to `False`.
        damping: Float in (0, 1]. Weight of f in each step. A model trained with whole
            steps (`1.0`) can be solved with half steps, which converge where whole
            steps oscillate. `None`: the damping of the solver. Defaults to `None`.
        tol: Float >= 0. Both kinds of steps stop early if the root mean square of the
            batch's relative residuals is at most `tol`. Fast cells then cost fewer
            steps than slow cells. `None`: 0.01 if `num_steps` is `None`, else 0, so
            that all steps are taken. Defaults to `None`.
        checkpoints: Positive integer c. Like `remat`, but memory holds c states and the
            activations of 1 / c of the largest k. The square root of k needs the
            least memory if a state is as large as its activations. Defaults to `None`.

    Raises:
        ValueError: If n + k may be larger than `max_steps`, or `remat` and
            `checkpoints` are both given.

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
    has_tangent = True

    def __init__(
        self,
        num_steps: NumSteps | None = None,
        num_free_steps: NumSteps = step_counts.UNIFORM,
        max_steps: int | None = None,
        free_fraction: float | None = None,
        free_noise: float = 0.3,
        remat: bool = False,
        damping: float | None = None,
        tol: float | None = None,
        checkpoints: int | None = None,
    ) -> None:
        self.num_steps = num_steps
        self.num_free_steps = num_free_steps
        self.max_steps = check_optional_count("max_steps", max_steps)
        self.free_fraction = (
            None
            if free_fraction is None
            else check_fraction("free_fraction", free_fraction)
        )
        self.free_noise = check_non_negative("free_noise", free_noise)
        self.remat = check_boolean("remat", remat)
        self.damping = (
            None if damping is None else check_positive_fraction("damping", damping)
        )
        self.tol = None if tol is None else check_non_negative("tol", tol)
        self.stops_early = num_steps is None if tol is None else tol > 0
        self.checkpoints = check_optional_count("checkpoints", checkpoints)
        if remat and checkpoints is not None:
            raise ValueError(
                "`remat=True` stores the state of every step. Use `checkpoints` alone "
                f"to store fewer states. Received: remat=True, {checkpoints=}."
            )
        self._counts(self.max_steps)

    def solve(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Equilibrium:
        if self.num_steps is None or self.free_fraction is None:
            suited = self._suited(request.initial_state, solver)
            return suited.solve(problem, request, solver, record_adjoint)
        max_steps = self.max_steps or _NUM_BUDGETS * solver.max_iter
        seed = as_seed(request.seed)
        num_free_steps, num_steps = self._draw(max_steps, request.budget, seed)
        damping = solver.damping if self.damping is None else self.damping

        def steps(count: int | tf.Tensor, index: int) -> Steps:
            seeded = _derived(seed, index) if solver.noise else None
            return Steps(solver, damping, count, max_steps, seeded, self.tol or None)

        free_steps = FreeSteps(
            steps(num_free_steps, 2),
            self.free_fraction or 0.0,
            self.free_noise,
            _derived(seed, 3),
        )
        free = free_steps.run(problem, request.initial_state)
        last_steps = steps(num_steps, 4)
        interval = self._interval(max_steps)

        num_states = request.num_states
        if num_states is not None:
            _, counts = self._counts(max_steps)
            most = counts.largest(max_steps)
            source = "the largest `num_steps` of TruncatedGradient"
            snapshots.check_num_states(num_states, most, source)

        def run(
            problem: FixedPointProblem, state: Nest
        ) -> tuple[tuple[Nest, ...], tf.Tensor, Any]:
            states, failed, count = last_steps.graded(
                problem, state, interval, num_states
            )
            failed |= free.failed
            start = (state,) * len(states)
            return where_rows(failed, start, states), failed, count

        def measure(
            problem: FixedPointProblem,
            states: tuple[Nest, ...],
            failed: tf.Tensor,
            count: Any,
        ) -> tuple[tf.Tensor, Any]:
            point = tree.map_structure(tf.stop_gradient, states[-1])
            healthy, healthy_point = problem.without(failed, point)
            # One evaluation serves the residual and the penalty of the regularizer.
            linearization = healthy.linearize(healthy_point)
            # The steps stop at their own tolerance, so it defines convergence.
            judge = copy.copy(solver)
            judge.tol = max(self.tol or 0.0, solver.tol or 0.0) or solver.tol
            solution = judge.assess(point, linearization.value, is_usable=~failed)
            return nonfinite.has_failed(solution), (linearization, solution, count)

        states, (linearization, solution, count) = nonfinite.differentiable(
            problem, run, free.state, measure
        )
        if self.num_free_steps != 0 and self.free_fraction:
            reason = "its free steps are constants"
            states = HigherOrder(type(self).__name__, reason, False).guard(states)
        failed = nonfinite.has_failed(solution)
        num_evaluations = free.num_evaluations + count
        excluded = failed
        if self.tol:
            has_budget = num_evaluations >= self._budget(solver, request, max_steps)
            excluded |= ~(has_budget | (count < num_steps))
        linearization = nonfinite.usable_linearization(linearization, excluded)
        solution = tree.map_structure(tf.stop_gradient, solution)
        solution = solution._replace(
            num_evaluations=num_evaluations,
            # The maximum over an empty batch is not a number of steps.
            batch_evaluations=tf.maximum(tf.reduce_max(free.num_evaluations), 0)
            + count,
        )
        value = states[-1]
        states = () if num_states is None else states
        return Equilibrium(value, solution, linearization, states)

    def infer(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
    ) -> Equilibrium:
        # A trained model may be used with any budget, so none is checked here.
        _, steps = self._counts(self.max_steps)
        num_terms = steps.largest(self.max_steps or _NUM_BUDGETS * solver.max_iter) - 1
        gradient: NeumannGradient | PhantomGradient
        if num_terms == 0:
            gradient = PhantomGradient(1, damping=1.0)
        else:
            gradient = NeumannGradient(num_terms)
        gradient.described = "TruncatedGradient, outside of training,"
        return gradient.infer(problem, request, solver)

    def get_config(self) -> Config:
        return arguments_of(self, TruncatedGradient)

    def fewest_steps(self, state: Nest, solver: FixedPointSolver) -> int:
        free_steps, steps = self._suited(state, solver)._counts(self.max_steps)
        return sum(
            count.smallest
            if isinstance(count.distribution, str)
            else count.smallest + int(np.flatnonzero(count.distribution)[0])
            for count in (free_steps, steps)
        )

    def _suited(self, state: Nest, solver: FixedPointSolver) -> "TruncatedGradient":
        """Returns this gradient with numbers that suit a state instead of `None`."""
        suited = copy.copy(self)
        has_positions = any(leaf.shape.rank > 2 for leaf in tree.flatten(state))
        if self.free_fraction is None:
            suited.free_fraction = _FREE_FRACTION if has_positions else 1.0
        if self.num_steps is None:
            max_steps = self.max_steps or _NUM_BUDGETS * solver.max_iter
            suited.num_steps = most = self._default_steps(max_steps)
            if has_positions:
                fewest = min(_FEWEST_STEPS, most)
                suited.num_steps = [0] * (fewest - 1) + [1] * (most - fewest + 1)
            suited.tol = _TOL if self.tol is None else self.tol
        return suited

    def _default_steps(self, max_steps: int | None) -> int:
        """Returns the largest default number of differentiated steps."""
        free_steps = step_counts.checked("num_free_steps", self.num_free_steps, 0)
        room = _MOST_STEPS if max_steps is None else max_steps - free_steps.needed
        return max(1, min(_MOST_STEPS, room))

    def _counts(self, max_steps: int | None) -> tuple[StepCounts, StepCounts]:
        """Returns the numbers of free and of differentiated steps; checks that a known
        limit allows them."""
        free_steps = step_counts.checked("num_free_steps", self.num_free_steps, 0)
        num_steps = self.num_steps
        if num_steps is None:
            num_steps = self._default_steps(max_steps)
        steps = step_counts.checked("num_steps", num_steps, 1)
        if max_steps is not None and free_steps.needed + steps.needed > max_steps:
            raise ValueError(
                "`max_steps` must be at least the number of free steps plus the number "
                "of steps with a gradient. It defaults to twice the solver's "
                "`max_iter`. Expected: "
                f"num_free_steps + num_steps <= {max_steps}. Received: "
                f"num_free_steps={self.num_free_steps!r}, num_steps={self.num_steps!r}."
            )
        return free_steps, steps

    def _interval(self, max_steps: int) -> int | None:
        """Returns the number of steps between two stored states, or `None`."""
        if self.checkpoints is None:
            return 1 if self.remat else None
        _, steps = self._counts(max_steps)
        return -(-steps.largest(max_steps) // self.checkpoints)

    def _budget(
        self, solver: FixedPointSolver, request: SolveRequest, max_steps: int
    ) -> int | tf.Tensor:
        """Returns the budget of the solve, limited to the largest number of steps."""
        free_steps, steps = self._counts(max_steps)
        largest = steps.largest(max_steps)
        if self.free_fraction:
            largest = min(max_steps, largest + free_steps.largest(max_steps))
        budget = solver.max_iter if request.budget is None else request.budget
        return tf.minimum(budget, largest)

    def _draw(
        self, max_steps: int, budget: tf.Tensor | None, seed: tf.Tensor | None
    ) -> tuple[int | tf.Tensor, int | tf.Tensor]:
        """Returns the numbers of steps without a gradient and with a gradient."""
        free_steps, steps = self._counts(max_steps)
        has_free_steps = free_steps.is_random or free_steps.smallest > 0
        fraction = self.free_fraction or 0.0
        is_drawn = steps.is_random or (
            has_free_steps and (0 < fraction < 1 or 0 < fraction * self.free_noise)
        )
        if seed is None and (is_drawn or free_steps.is_random):
            raise ValueError(
                "TruncatedGradient draws random numbers, and needs a `seed`."
            )
        room = max_steps
        if budget is not None:
            if self.max_steps is None:
                budget *= _NUM_BUDGETS
            room = tf.maximum(budget, free_steps.needed + steps.needed)
        num_free_steps = free_steps.draw(room - steps.needed, _derived(seed, 0))
        return num_free_steps, steps.draw(room - num_free_steps, _derived(seed, 1))


def _derived(seed: tf.Tensor | None, index: int) -> tf.Tensor | None:
    return None if seed is None else fold_in(seed, index)
