"""Back-propagation through the last of a few steps, to the state that they reach."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.checks import check_boolean, check_optional_count
from deq_keras.draws import derived_seed
from deq_keras.gradients import step_counts
from deq_keras.gradients.forward import linearize_equilibrium, solve_without_gradient
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.gradients.neumann import NeumannGradient
from deq_keras.gradients.phantom import PhantomGradient
from deq_keras.gradients.step_counts import Steps
from deq_keras.serialization import Config
from deq_keras.solvers import DIVERGED, FixedPointIteration, FixedPointSolver, Solution
from deq_keras.structure import Nest, where_rows_if_any


class _FreePhase(NamedTuple):
    """Where the steps without gradient led to.

    Attributes:
        state: Nest of `(batch, ...)` tensors.
        failed: Boolean tensor `(batch,)`.
        num_evaluations: Int32 tensor `(batch,)`.
    """

    state: Nest
    failed: tf.Tensor
    num_evaluations: tf.Tensor


@keras.saving.register_keras_serializable(package="deq_keras")
class TruncatedGradient(EquilibriumGradient):
    """Back-propagates the last steps, and returns the state that *they* reached.

        z_n = n evaluations of the solver, without gradient
        h_0 = z_n,    h_{t+1} = f(h_t, u)    for k steps, the output is h_k

    Exact for what was computed, at an equilibrium or on the way to one, which is where
    models that must carry information far learn. (`PhantomGradient` has the derivative
    of h_k at the value f(z*): right where they meet.) With n and k drawn anew in each
    training step, an answer must come from wherever the search stands, and stay. Memory
    grows with k, not with n. The steps are damped and perturbed as those of a
    `FixedPointIteration` that is the solver; they know nothing of other solvers.

    Outside of training nothing is drawn: the solver searches with its whole budget, and
    who asks for a gradient gets the same sum at its equilibrium, `NeumannGradient` with
    one term less than there may be steps.

    Args:
        num_steps: How many steps are back-propagated, k: a positive integer;
            `"uniform"`, drawn from 1 to what n leaves of `max_steps`; or a sequence of
            weights, how likely 1, 2, ... steps are. Defaults to `"uniform"`.
        num_free_steps: How many evaluations come before, n: an integer >= 0;
            `"uniform"`, drawn from 0 to what leaves room for k; or a sequence of
            weights, how likely 0, 1, ... are. Defaults to `"uniform"`.
        max_steps: Positive integer M >= n + k. `None`: `max_iter` of the solver.
            Defaults to `None`.
        remat: Boolean. Whether the backward pass evaluates f again, so that k states
            are kept and the activations of one evaluation, not those of k. Costs k
            evaluations. Defaults to `False`.

    Raises:
        ValueError: If n + k may be larger than `max_steps`.

    Example:

    >>> gradient = deq_keras.gradients.TruncatedGradient(max_steps=16)

    Reference:

    - Bansal et al. (2022), "End-to-end Algorithm Synthesis with Recurrent Networks:
      Logical Extrapolation Without Overthinking" (random n and k, after n free steps).
    """

    is_random = True

    def __init__(
        self,
        num_steps: Steps = step_counts.UNIFORM,
        num_free_steps: Steps = step_counts.UNIFORM,
        max_steps: int | None = None,
        remat: bool = False,
    ) -> None:
        self.num_steps = num_steps
        self.num_free_steps = num_free_steps
        self.max_steps = check_optional_count("max_steps", max_steps)
        self.remat = check_boolean("remat", remat)
        self._steps = step_counts.checked("num_steps", num_steps, 1)
        self._free_steps = step_counts.checked("num_free_steps", num_free_steps, 0)
        if max_steps is not None:
            self._check_room(self.max_steps)

    def solve(
        self,
        fn: Callable[[Nest, Nest], Nest],
        initial_state: Nest,
        injection: Nest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[Solution], None] | None = None,
        budget: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> Equilibrium:
        fn = faults.SampleFunction.of(fn)
        num_free_steps, num_steps = self._draw(self._room(solver), budget, seed)
        free = self._free_phase(
            fn, initial_state, injection, solver, num_free_steps, seed
        )
        steps = _Steps(solver, num_steps, self._room(solver), self.remat, seed)

        def run(
            fn: faults.BoundFunction, state: Nest, injection: Nest
        ) -> tuple[Nest, tf.Tensor, tf.Tensor]:
            value, failed = steps.run(fn, state, injection)
            failed |= free.failed
            return where_rows_if_any(failed, state, value), failed, failed

        value, failed = fn.differentiable(run, free.state, injection)
        solution = _assessed(fn, value, injection, solver)
        solution = solution._replace(
            status=tf.where(failed, DIVERGED, solution.status),
            num_evaluations=free.num_evaluations + num_steps,
            batch_evaluations=tf.convert_to_tensor(num_free_steps + num_steps),
        )
        linearization, _ = linearize_equilibrium(fn, solution, injection)
        return Equilibrium(value, solution, linearization)

    def infer(
        self,
        fn: Callable[[Nest, Nest], Nest],
        initial_state: Nest,
        injection: Nest,
        solver: FixedPointSolver,
    ) -> Equilibrium:
        num_terms = self._steps.largest(self._room(solver)) - 1
        gradient = (
            NeumannGradient(num_terms) if num_terms else PhantomGradient(1, damping=1.0)
        )
        return gradient.infer(fn, initial_state, injection, solver)

    def get_config(self) -> Config:
        return {
            "num_steps": self.num_steps,
            "num_free_steps": self.num_free_steps,
            "max_steps": self.max_steps,
            "remat": self.remat,
        }

    def _room(self, solver: FixedPointSolver) -> int:
        if self.max_steps is not None:
            return self.max_steps
        self._check_room(solver.max_iter)
        return solver.max_iter

    def _check_room(self, room: int) -> None:
        if self._free_steps.needed + self._steps.needed > room:
            raise ValueError(
                "`max_steps`, the solver's `max_iter` unless it is given, must have "
                "room for all free steps and all that are back-propagated. Expected: "
                f"num_free_steps + num_steps <= {room}. Received: "
                f"num_free_steps={self.num_free_steps!r}, num_steps={self.num_steps!r}."
            )

    def _draw(
        self, room: int, budget: tf.Tensor | None, seed: tf.Tensor | None
    ) -> tuple[int | tf.Tensor, int | tf.Tensor]:
        """Returns the numbers of steps without gradient, and of those with it."""
        is_random = self._free_steps.is_random or self._steps.is_random
        if is_random and seed is None:
            raise ValueError("TruncatedGradient draws steps, and needs a `seed`.")
        if budget is not None:
            room = tf.maximum(budget, self._free_steps.needed + self._steps.needed)
        seeds = [None if seed is None else derived_seed(seed, i) for i in range(2)]
        num_free_steps = self._free_steps.draw(room - self._steps.needed, seeds[0])
        return num_free_steps, self._steps.draw(room - num_free_steps, seeds[1])

    def _free_phase(
        self,
        fn: faults.SampleFunction,
        initial_state: Nest,
        injection: Nest,
        solver: FixedPointSolver,
        num_steps: int | tf.Tensor,
        seed: tf.Tensor | None,
    ) -> _FreePhase:
        def searched() -> _FreePhase:
            solution = solve_without_gradient(
                fn,
                initial_state,
                injection,
                solver,
                budget=tf.convert_to_tensor(num_steps),
                seed=None if seed is None else derived_seed(seed, 2),
                max_iter=self._room(solver),
            )
            failed = faults.has_failed(solution)
            return _FreePhase(solution.value, failed, solution.num_evaluations)

        def at_once() -> _FreePhase:
            batch_size = tf.shape(tree.flatten(initial_state)[0])[:1]
            return _FreePhase(
                tree.map_structure(tf.identity, initial_state),
                tf.zeros(batch_size, tf.bool),
                tf.zeros(batch_size, tf.int32),
            )

        if not tf.is_tensor(num_steps):
            return searched() if num_steps else at_once()
        return tf.cond(num_steps > 0, searched, at_once)


class _Steps(NamedTuple):
    """The steps that are back-propagated.

    Attributes:
        solver: The `FixedPointSolver` whose damping and noise they have.
        num_steps: Integer or int32 scalar tensor.
        max_steps: Integer, which it does not exceed.
        remat: Boolean. Whether f is evaluated again for the gradient.
        seed: Int32 tensor of shape `(2,)`, or `None`.
    """

    solver: FixedPointSolver
    num_steps: int | tf.Tensor
    max_steps: int
    remat: bool
    seed: tf.Tensor | None

    def run(
        self, fn: faults.BoundFunction, state: Nest, injection: Nest
    ) -> tuple[Nest, tf.Tensor]:
        """Returns the state after them, and which samples met what is not finite."""
        evaluate = fn.rematerialized if self.remat else fn

        def body(
            i: tf.Tensor, state: Nest, failed: tf.Tensor
        ) -> tuple[tf.Tensor, Nest, tf.Tensor]:
            state = self._next(state, evaluate(state, injection), i)
            return i + 1, state, failed | ~faults.finite_rows(state)

        failed = tf.zeros_like(faults.finite_rows(state))
        _, state, failed = tf.while_loop(
            lambda i, *_: i < self.num_steps,
            body,
            (tf.constant(0), state, failed),
            maximum_iterations=self.max_steps,
        )
        return state, failed

    def _next(self, point: Nest, value: Nest, i: tf.Tensor) -> Nest:
        leaves = []
        for j, (old, new) in enumerate(
            zip(tree.flatten(point), tree.flatten(value), strict=True)
        ):
            if self.solver.damping < 1.0:
                new = old + tf.constant(self.solver.damping, new.dtype) * (new - old)
            seed = None if self.seed is None else derived_seed(self.seed, 3 + j)
            leaves.append(self.solver.perturbed(new, i, seed))
        return tree.pack_sequence_as(point, leaves)


def _assessed(
    fn: faults.SampleFunction, state: Nest, injection: Nest, solver: FixedPointSolver
) -> Solution:
    """Returns the `Solution` of who stops at `state`: the residual there."""
    look = FixedPointIteration(max_iter=1, tol=solver.tol, stop_mode=solver.stop_mode)
    return solve_without_gradient(fn, state, injection, look)
