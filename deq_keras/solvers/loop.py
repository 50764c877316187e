"""The variables of a solver's loop, and the states of the past that it keeps."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

import tensorflow as tf

from deq_keras.core import graphs
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

    @property
    def is_running(self) -> tf.Tensor:
        """Boolean scalar. Whether another evaluation follows."""
        return self.num_evaluations < self.limit


class Rotating(NamedTuple):
    """The last states that a solver keeps, which rotate by reference, at no cost."""

    columns: tuple[tf.Tensor, ...]  # (B, D) each, newest first

    @property
    def size(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def push(self, column: tf.Tensor) -> Self:
        """Returns the columns with a new one in front, without the oldest."""
        return self._replace(columns=(column, *self.columns[:-1]))

    def get(self, age: int) -> tf.Tensor:
        """Returns a column, `(batch, features)`; age 0 is the newest."""
        return self.columns[age]


class Ring(NamedTuple):
    """Columns in fixed slots: the newest column replaces the oldest.

    With `Rotating`, XLA would copy the columns in each evaluation.
    """

    columns: tf.Tensor  # (slots, B, D)
    newest: tf.Tensor  # () int32, a slot

    @property
    def size(self) -> int:
        """See `Rotating.size`."""
        size: int = self.columns.shape[0]
        return size

    def push(self, column: tf.Tensor) -> Self:
        """See `Rotating.push`."""
        newest = self._slot(-1)
        columns = tf.tensor_scatter_nd_update(self.columns, [[newest]], column[None])
        return self._replace(columns=columns, newest=newest)

    def get(self, age: int) -> tf.Tensor:
        """See `Rotating.get`."""
        return tf.gather(self.columns, self._slot(age))

    def _slot(self, age: int) -> tf.Tensor:
        return (self.newest - age) % self.size


Columns: TypeAlias = Rotating | Ring


def zero_columns(point: tf.Tensor, count: int) -> Columns:
    """Returns `count` columns of zeros like a point.

    Args:
        point: Tensor `(batch, features)`.
        count: Positive integer.
    """
    if not graphs.is_compiled_by_xla():
        return Rotating((tf.zeros_like(point),) * count)
    # XLA would share constant zeros between a solve and its adjoint solve, and keep
    # them during both. It does not know that no number is both NaN and infinite.
    is_both = tf.math.is_nan(point) & tf.math.is_inf(point)
    zero = tf.cast(tf.reduce_any(is_both), point.dtype)
    columns = tf.broadcast_to(zero, tf.concat([[count], tf.shape(point)], axis=0))
    return Ring(tf.ensure_shape(columns, [count, *point.shape]), tf.constant(0))
