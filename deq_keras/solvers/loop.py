"""The variables of a solver's loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.core.structure import Nest, StateStructure, squared_norm


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


def evaluate(
    problem: Callable[[Nest], Nest], structure: StateStructure, point: tf.Tensor
) -> Evaluation:
    """Evaluates f, a function of states, at a `(batch, features)` matrix."""
    return Evaluation.of(structure, point, problem(structure.to_state(point)))


class LoopState(NamedTuple):
    """The variables of a solver's loop, with B samples of D features."""

    num_evaluations: tf.Tensor  # () int32, of the whole batch
    limit: tf.Tensor  # () int32 of evaluations, 0 when all samples are done
    next_point: tf.Tensor  # (B, D)
    memory: Any  # memory of the solver
    best_point: tf.Tensor  # (B, D)
    best_value: tf.Tensor  # (B, D)
    best_error: tf.Tensor  # (B,)
    status: tf.Tensor  # (B,) int64, MAX_ITER while the sample is active
    sample_evaluations: tf.Tensor  # (B,) int64
    trace: tf.Tensor | tuple[()]  # (max_iter, B), empty if it is not recorded
    readouts: Any  # memory of the stopping rule
    states: tuple["LoopResult", ...]  # results at earlier counts, empty without

    @property
    def is_running(self) -> tf.Tensor:
        """Boolean scalar. Whether another evaluation follows."""
        return self.num_evaluations < self.limit


class LoopResult(NamedTuple):
    """The variables of a `LoopState` that form a `Solution`."""

    num_evaluations: tf.Tensor
    best_point: tf.Tensor
    best_value: tf.Tensor
    best_error: tf.Tensor
    status: tf.Tensor
    sample_evaluations: tf.Tensor

    @classmethod
    def of(cls, state: LoopState) -> "LoopResult":
        return cls(*(getattr(state, name) for name in cls._fields))
