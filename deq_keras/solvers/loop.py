"""The variables of a solver's loop."""

from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.core.structure import Nest, StateStructure, squared_norm
from deq_keras.solvers.solution import Solution


class Evaluation(NamedTuple):
    """One evaluation of f, as matrices.

    Attributes:
        point: Tensor `(batch, features)`. The point z.
        value: Tensor `(batch, features)`. f(z).
        residual: Tensor `(batch, features)`. g(z) = f(z) - z.
        squared_norm: Tensor `(batch, 1)`. |g(z)|^2.
    """

    point: tf.Tensor
    value: tf.Tensor
    residual: tf.Tensor
    squared_norm: tf.Tensor

    @classmethod
    def of(
        cls, structure: StateStructure, point: tf.Tensor, state: Nest
    ) -> "Evaluation":
        """Returns the evaluation with f(point) = `state`.

        Args:
            structure: `StateStructure` of the state.
            point: Tensor `(batch, features)`.
            state: Nest of tensors. Value of f at `point`.

        Raises:
            ValueError: If `state` does not have the structure.
        """
        structure.check(state, "What the function of a fixed-point problem returns")
        value = structure.to_matrix(state)
        residual = value - point
        return cls(point, value, residual, squared_norm(residual))


class LoopState(NamedTuple):
    """The variables of a solver's loop, with B samples of D features.

    Attributes:
        results: A `Solution` with matrices `(B, D)` in place of states, int64 counts,
            and an empty tuple instead of a trace that is not recorded.
        budget_if_running: Int32 scalar tensor. The budget, or 0 if all samples are
            done.
        next_point: Tensor `(B, D)`. The point of the next evaluation.
        memory: Memory of the solver.
        progress: Memory of the stopping rule.
    """

    results: Solution
    budget_if_running: tf.Tensor
    next_point: tf.Tensor
    memory: Any
    progress: Any

    @property
    def is_running(self) -> tf.Tensor:
        """Boolean scalar. Whether another evaluation follows."""
        return self.results.batch_evaluations < self.budget_if_running
