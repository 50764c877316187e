"""Solvers by operator splitting, for monotone cells."""

from collections.abc import Callable
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_positive
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.request import SolveRequest, check_request
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import Nest, at_least_float32, interpolate, where_rows
from deq_keras.solvers.solution import CONVERGED, Solution
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.splitting import Splitting
from deq_keras.solvers.stopping import Evaluation


class OperatorSplitting(FixedPointSolver):
    """Solves z = prox(W z + b), where I - W is monotone, by operator splitting.

    f itself need not contract. An evaluation applies the map of the splitting to the
    iterate u. The state is z = prox(u). Residuals are computed for u and never grow.
    Subclasses implement the map in `iteration`.

    Args:
        alpha: Positive float. Step size.
        max_iter: See `FixedPointSolver`.
        tol: See `FixedPointSolver`.
        stop_mode: See `FixedPointSolver`.
    """

    def __init__(
        self,
        alpha: float,
        max_iter: int,
        tol: float | None,
        stop_mode: str,
    ) -> None:
        super().__init__(max_iter, tol, stop_mode)
        self.alpha = check_positive("alpha", alpha)

    def iteration(self, splitting: Splitting) -> Callable[[Nest], Nest]:
        """Returns the function from an iterate u to the next one.

        Args:
            splitting: The `Splitting`. `iteration` runs once per solve, and the
                returned function once per evaluation.
        """
        raise NotImplementedError

    def solve(
        self, problem: FixedPointProblem | Callable[[Nest], Nest], request: SolveRequest
    ) -> Solution:
        """See `FixedPointSolver.solve`.

        Args:
            problem: A `FixedPointProblem` with a `splitting`, as `DEQ` builds for a
                `MonotoneCell`.
            request: A `SolveRequest`.

        Raises:
            ValueError: If the problem lacks a splitting.
        """
        problem = FixedPointProblem.of(problem)
        splitting = self._splitting_of(problem)
        initial_state = check_request(request).initial_state
        start = tree.map_structure(at_least_float32, initial_state)
        request = request._replace(
            initial_state=splitting.to_auxiliary(start, self.alpha)
        )
        iteration = FixedPointProblem.of(self.iteration(splitting))
        iteration = iteration.bound((), is_usable=problem.is_usable)
        solution = super().solve(iteration, request)
        failed = nonfinite.has_no_evaluation(solution)
        value, point = (
            tree.map_structure(
                lambda leaf, like: tf.cast(leaf, like.dtype),
                self.state_of(problem, iterate),
                initial_state,
            )
            for iterate in (solution.value, solution.point)
        )
        return solution._replace(
            value=where_rows(failed, initial_state, value),
            point=where_rows(failed, initial_state, point),
        )

    def state_of(self, problem: FixedPointProblem, iterate: Nest) -> Nest:
        return self._splitting_of(problem).from_auxiliary(iterate, self.alpha)

    def tuned(
        self,
        problem: FixedPointProblem | Callable[[Nest], Nest],
        request: SolveRequest,
        smallest: float = 1e-4,
    ) -> Self:
        """Returns this solver with the step size that needs the fewest evaluations.

        Tries step sizes of 1, 1/2, 1/4 and so on, until the number of evaluations
        increases.

        Args:
            problem: See `solve`.
            request: See `solve`.
            smallest: Positive float. Smallest step size to try. Defaults to `1e-4`.

        Returns:
            A solver. This solver if no step size converged for all samples.
        """
        alpha, best, fewest = 1.0, self, float("inf")
        while alpha >= smallest:
            solver = self.from_config({**self.get_config(), "alpha": alpha})
            solution = solver.solve(problem, request)
            count = float(tf.reduce_mean(tf.cast(solution.num_evaluations, tf.float32)))
            if count > fewest:
                break
            if np.all(solution.status == CONVERGED):
                best = solver
            alpha, fewest = alpha / 2, count
        return best

    def step(
        self, evaluation: Evaluation, memory: Any, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        return evaluation.value, memory

    def get_config(self) -> Config:
        # Iterates are not states, so compaction is impossible, and no argument.
        return arguments_of(self, OperatorSplitting)

    def _splitting_of(self, problem: FixedPointProblem) -> Splitting:
        splitting = problem.splitting
        if splitting is None:
            raise ValueError(
                f"{type(self).__name__} needs the parts of f, z = prox(W z + b), with "
                "a resolvent of W, but the problem lacks them. Use a monotone "
                "cell, such as MonotoneDenseCell, without a mask; or a solver that "
                f"only evaluates f, such as Anderson. Received: fn={problem.fn!r}."
            )
        return splitting


@keras.saving.register_keras_serializable(package="deq_keras")
class ForwardBackward(OperatorSplitting):
    """Forward-backward splitting, for the cells of `deq_keras.layers.MonotoneCell`.

        z = prox(u, alpha),    u <- z + alpha (W z + b - z)

    A step costs one product with W. It converges for alpha < 2 m / L^2, where L is the
    norm of I - W and m its strong monotonicity. With small alpha, it converges slowly.

    Args:
        alpha: Positive float. Step size. Defaults to `0.1`.
        max_iter: Positive integer. Budget of evaluations. Defaults to `300`.
        tol: Non-negative float or `None`. Tolerance of the residual of u; see
            `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: See `FixedPointSolver`. Defaults to `"rel"`.

    Raises:
        ValueError: From `solve`, if the problem lacks a splitting.

    Example:

    >>> solver = deq_keras.solvers.ForwardBackward(alpha=0.2)
    >>> layer = deq_keras.layers.DEQ(deq_keras.layers.MonotoneDenseCell(8), solver)
    >>> layer(np.ones((2, 3), "float32")).shape
    TensorShape([2, 8])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 4.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        max_iter: int = 300,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
    ) -> None:
        super().__init__(alpha, max_iter, tol, stop_mode)

    def iteration(self, splitting: Splitting) -> Callable[[Nest], Nest]:
        def iterate(iterate: Nest) -> Nest:
            state = splitting.proximal(iterate, self.alpha)
            return interpolate(state, splitting.affine(state), self.alpha)

        return iterate


@keras.saving.register_keras_serializable(package="deq_keras")
class PeacemanRachford(OperatorSplitting):
    """Peaceman-Rachford splitting, for the cells of `deq_keras.layers.MonotoneCell`.

        z = prox(u, alpha),    v = 2 z - u
        u <- 2 (I + alpha (I - W))^-1 (v + alpha b) - v

    It converges for every alpha > 0, and linearly. A step costs one product with the
    inverse, which is computed once per solve.

    Args:
        alpha: Positive float. Step size. Defaults to `1.0`.
        max_iter: Positive integer. Budget of evaluations. Defaults to `50`.
        tol: Non-negative float or `None`. Tolerance of the residual of u; see
            `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: See `FixedPointSolver`. Defaults to `"rel"`.

    Raises:
        ValueError: From `solve`, if the problem lacks a splitting.

    Example:

    >>> cell = deq_keras.layers.MonotoneDenseCell(8)
    >>> layer = deq_keras.layers.DEQ(cell, solver="peaceman_rachford")
    >>> layer(np.ones((2, 3), "float32")).shape
    TensorShape([2, 8])

    Reference:

    - Winston and Kolter (2020), "Monotone operator equilibrium networks", section 4.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        max_iter: int = 50,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
    ) -> None:
        super().__init__(alpha, max_iter, tol, stop_mode)

    def iteration(self, splitting: Splitting) -> Callable[[Nest], Nest]:
        resolvent = splitting.resolvent(self.alpha)

        def iterate(iterate: Nest) -> Nest:
            state = splitting.proximal(iterate, self.alpha)
            reflected = _reflect(iterate, state)
            shifted = tree.map_structure(
                lambda leaf, bias: leaf + self.alpha * bias, reflected, splitting.bias
            )
            return _reflect(reflected, resolvent(shifted))

        return iterate


def _reflect(state: Nest, mirror: Nest) -> Nest:
    return tree.map_structure(lambda leaf, other: 2.0 * other - leaf, state, mirror)
