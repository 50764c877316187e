"""The implicit gradient with a truncated adjoint series."""

from collections.abc import Callable

import keras
import tensorflow as tf

from deq_keras.core.checks import check_count
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    squared_norm,
    where_rows,
)
from deq_keras.gradients.implicit import ImplicitGradient
from deq_keras.solvers import (
    Evaluation,
    FixedPointIteration,
    Solution,
    SolveRequest,
)


@keras.saving.register_keras_serializable(package="deq_keras")
class NeumannGradient(ImplicitGradient):
    """Differentiates z* = f(z*, u) by a truncated Neumann series.

    Truncates the series of the adjoint y = (I - J^T)^-1 c, with J = df/dz at z*, after
    `num_terms` products:

        y = sum_{k=0}^{num_terms} (J^T)^k c

    The error is of the order of the spectral radius of J to the power `num_terms + 1`,
    and is negligible for a cell that contracts well. For other cells, a few directions
    that J hardly damps dominate the exact adjoint, or it is noise if the forward solve
    has not converged. The truncated series trains better then, and is bounded: it ends
    before the first term whose norm exceeds ten times the norm of c, so the norm of y
    is at most `1 + 10 * num_terms` times the norm of c. It costs `num_terms`
    vector-Jacobian products, and as much memory as `ImplicitGradient`.

    Args:
        num_terms: Positive integer. Vector-Jacobian products of the adjoint. Defaults
            to `12`.

    Example:

    >>> gradient = deq_keras.gradients.NeumannGradient(num_terms=3)

    Reference:

    - Geng et al. (2021), "On Training Implicit Models", section 3 (Neumann-series-based
      phantom gradient).
    """

    assumes_convergence = False

    def __init__(self, num_terms: int = 12) -> None:
        self.num_terms = check_count("num_terms", num_terms)
        super().__init__(_BoundedSeries(max_iter=self.num_terms, tol=None))

    def get_config(self) -> Config:
        return arguments_of(self, NeumannGradient)


class _BoundedSeries(FixedPointIteration):
    """Sums the series of a sample until a term is much larger than the first.

    If J expands, terms grow like powers of its spectral radius: to 1e18 after ten, with
    a transformer. The global norm then overflows, and clipping by it makes NaN.
    """

    _LARGEST_GROWTH = 10.0

    def solve(
        self, problem: FixedPointProblem | Callable[[Nest], Nest], request: SolveRequest
    ) -> Solution:
        solution = super().solve(problem, request)
        structure = StateStructure(request.initial_state)
        last_term = structure.to_matrix(solution.value) - structure.to_matrix(
            solution.point
        )
        first_term = structure.to_matrix(request.initial_state)
        # If a series ended, the result excludes the term that was too large.
        is_small = self._is_small(squared_norm(last_term), squared_norm(first_term))
        value = where_rows(is_small[:, 0], solution.value, solution.point)
        return solution._replace(value=value)

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> tf.Tensor:
        return squared_norm(point)

    def step(
        self, evaluation: Evaluation, memory: tf.Tensor, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # The residual of a partial sum is the next term. If it is too large, the series
        # ends: the sum stays the same.
        is_small = self._is_small(evaluation.squared_norm, memory)
        return tf.where(is_small, evaluation.value, evaluation.point), memory

    def _is_small(self, term: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        return term <= self._LARGEST_GROWTH**2 * first
