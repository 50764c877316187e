"""The base of solvers by operator splitting."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.checks import check_positive
from deq_keras.serialization import Config
from deq_keras.solvers.evaluation import Evaluation
from deq_keras.solvers.request import SolveRequest
from deq_keras.solvers.solution import CONVERGED, Solution
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.unchanged_answer import UnchangedAnswer
from deq_keras.splitting import Splitting
from deq_keras.structure import Nest, in_solver_dtype, where_rows_if_any


class OperatorSplitting(FixedPointSolver):
    """Finds z = prox(W z + b), where I - W is monotone, from its parts.

    f itself need not contract. An evaluation is one application of the splitting's own
    map to its iterate u, of which z = prox(u) is the state; residuals are those of u,
    which never grow. A subclass supplies that map: `iteration`.

    Args:
        alpha: Float > 0. The step size.
        max_iter: See `FixedPointSolver`.
        tol: See `FixedPointSolver`.
        stop_mode: See `FixedPointSolver`.
    """

    def __init__(
        self, alpha: float, max_iter: int, tol: float | None, stop_mode: str
    ) -> None:
        super().__init__(max_iter, tol, stop_mode)
        self.alpha = check_positive("alpha", alpha)

    def iteration(self, splitting: Splitting) -> Callable[[Nest], Nest]:
        """Returns the function from an iterate u to the next one.

        Args:
            splitting: The `Splitting`. What this function computes, and the returned
                one does not, is computed once a solve.
        """
        raise NotImplementedError

    def solve_request(
        self, fn: Callable[[Nest], Nest], request: SolveRequest
    ) -> Solution:
        """See `FixedPointSolver.solve_request`.

        Args:
            fn: A function with an attribute `splitting`, a `Splitting`, as `DEQ` makes
                of a `MonotoneCell`.
            request: A `SolveRequest`.

        Raises:
            ValueError: If `fn` has none.
        """
        splitting = self._splitting_of(fn)
        initial_state = request.initial_state

        def state_of(iterate: Nest) -> Nest:
            return tree.map_structure(
                lambda leaf, like: tf.cast(leaf, like.dtype),
                splitting.leave(iterate, self.alpha),
                initial_state,
            )

        start = tree.map_structure(in_solver_dtype, initial_state)
        request = request._replace(
            initial_state=splitting.enter(start, self.alpha),
            halting=_of_iterates(request.halting, state_of),
        )
        solution = super().solve_request(self.iteration(splitting), request)
        failed = faults.has_no_evaluation(solution)
        return solution._replace(
            value=where_rows_if_any(failed, initial_state, state_of(solution.value)),
            point=where_rows_if_any(failed, initial_state, state_of(solution.point)),
        )

    def tuned(
        self, fn: Callable[[Nest], Nest], initial_state: Nest, smallest: float = 1e-4
    ) -> Self:
        """Returns this solver with the step size that takes fewest evaluations.

        Step sizes of 1, 1/2, 1/4 and so on are tried as long as they do not take more.

        Args:
            fn: See `solve`.
            initial_state: See `solve`.
            smallest: Float > 0. Smaller ones are not tried. Defaults to `1e-4`.

        Returns:
            A solver. This one, if none of them converged for all samples.
        """
        alpha, best, fewest = 1.0, self, float("inf")
        while alpha >= smallest:
            solver = self.from_config({**self.get_config(), "alpha": alpha})
            solution = solver.solve(fn, initial_state)
            count = float(tf.reduce_mean(tf.cast(solution.num_evaluations, tf.float32)))
            if count > fewest:
                break
            if np.all(solution.status == CONVERGED):
                best = solver
            alpha, fewest = alpha / 2, count
        return best

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> tuple[()]:
        return ()

    def step(
        self, evaluation: Evaluation, memory: Any, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        return evaluation.value, memory

    def get_config(self) -> Config:
        config = {"alpha": self.alpha, **super().get_config()}
        del config["compact"]  # Its iterates are not states, whose rows may leave.
        return config

    def _splitting_of(self, fn: Callable[[Nest], Nest]) -> Splitting:
        splitting: Splitting | None = getattr(fn, "splitting", None)
        if splitting is None:
            raise ValueError(
                f"{type(self).__name__} needs the parts of f, z = prox(W z + b), with "
                "a resolvent of W, and this function offers none. Use a monotone cell, "
                "such as MonotoneDenseCell, without a mask; or a solver that evaluates "
                f"f and no more, such as Anderson. Received: fn={fn!r}."
            )
        return splitting


def _of_iterates(
    halting: UnchangedAnswer | None, state_of: Callable[[Nest], Nest]
) -> UnchangedAnswer | None:
    if halting is None:
        return None
    answer = halting.answer
    return UnchangedAnswer(lambda iterate: answer(state_of(iterate)), halting.patience)
