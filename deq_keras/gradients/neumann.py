"""The implicit gradient with an adjoint of few terms."""

from collections.abc import Callable

import keras
import tensorflow as tf

from deq_keras.core.checks import check_count
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    squared_norm,
    where_rows,
)
from deq_keras.gradients.implicit import ImplicitGradient
from deq_keras.solvers import Evaluation, FixedPointIteration, Solution, SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class NeumannGradient(ImplicitGradient):
    """Differentiates z* = f(z*, u) by a truncated Neumann series.

    The implicit gradient's adjoint y = (I - J^T)^-1 c, J = df/dz at z*, cut after
    `num_terms` products:

        y = sum_{k=0}^{num_terms} (J^T)^k c

    The error is of the order of the spectral radius of J to the power `num_terms + 1`:
    nothing for a cell that contracts well. Where it does not, the exact adjoint is
    dominated by a few directions that J hardly damps, or is noise if the forward solve
    has not converged. The truncated one trains better there, and is bounded: the series
    of a sample ends before the first term of more than ten times the norm of c, so y is
    at most `1 + 10 * num_terms` times as long as c. Costs `num_terms` vector-Jacobian
    products, and memory as `ImplicitGradient` does.

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
        return {"num_terms": self.num_terms}


class _BoundedSeries(FixedPointIteration):
    """Sums the series of a sample until a term is much larger than the first.

    Where J expands, terms grow like powers of its spectral radius: to 1e18 after ten,
    with a transformer. Clipping by the global norm, which overflows, makes that NaN.
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
        # A series that ended stands before the term that ended it.
        has_ended = ~self._is_small(squared_norm(last_term), squared_norm(first_term))
        value = where_rows(has_ended[:, 0], solution.point, solution.value)
        return solution._replace(value=value)

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> tf.Tensor:
        return squared_norm(point)

    def step(
        self, evaluation: Evaluation, memory: tf.Tensor, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # The residual of a partial sum is the term that its value has more. The same
        # sum again, where that ends the series.
        is_small = self._is_small(evaluation.squared_norm, memory)
        return tf.where(is_small, evaluation.value, evaluation.point), memory

    def _is_small(self, term: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        return term <= self._LARGEST_GROWTH**2 * first
