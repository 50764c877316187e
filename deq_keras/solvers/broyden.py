"""Broyden's good method with one stored vector per iteration."""

from __future__ import annotations

from typing import NamedTuple, Self

import keras
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_count
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import squared_norm
from deq_keras.solvers.columns import Columns, zero_columns
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.stopping import Evaluation

# Bounds the scaling 1 / (1 - c) of a step by 1 / _SMALLEST_PIVOT, so that the
# approximate Jacobian does not become singular (More and Trangenstein, 1976).
_SMALLEST_PIVOT = 1e-3

# A sweep processes the stored steps in blocks of this size, and skips empty blocks.
_BLOCK = 4


@keras.saving.register_keras_serializable(package="deq_keras")
class Broyden(FixedPointSolver):
    """Broyden's (good) method with full steps, for the root of g(z) = f(z) - z.

    The inverse Jacobian starts as -I. Each rank-one update satisfies the secant
    equation of the last step. With full steps, the update only needs the steps:

        d <- g(z_k)
        d <- d + s_{j+1} (s_j . d) / |s_j|^2        for j = 0 ... k - 2
        s_k = d / (1 - (s_{k-1} . d) / |s_{k-1}|^2),      z_{k+1} = z_k + s_k

    so the solver stores one state per iteration. The U V^T form of the reference
    (locuslab/deq of Bai et al., 2019) stores two. Broyden is the strongest solver for
    cells that do not contract. Anderson is cheaper if both converge.

    Args:
        max_iter: Positive integer. Budget of function evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"`, `"abs"`, `"rel_max"` or `"abs_max"`. See `FixedPointSolver`.
            Defaults to `"rel"`.
        history: Positive integer or `None`. Number of stored steps. When it is reached,
            the method restarts from the current point. Defaults to `None`, all steps.
        compact: Boolean. Whether to remove converged samples from the batch. See
            `FixedPointSolver`. Defaults to `False`.

    Example:

    >>> solver = deq_keras.solvers.Broyden(tol=1e-5)
    >>> solution = solver.solve(
    ...     lambda z: 3.0 - z**2, deq_keras.solvers.SolveRequest(tf.ones((1, 1)))
    ... )
    >>> round(float(solution.value[0, 0]), 4)  # plain iteration diverges here
    1.3028

    Reference:

    - Kelley (1995), "Iterative Methods for Linear and Nonlinear Equations", ch. 7.
    - Bai et al. (2019), "Deep Equilibrium Models", section 3.1.
    """

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        history: int | None = None,
        compact: bool = False,
    ) -> None:
        super().__init__(max_iter, tol, stop_mode, compact)
        self.history = None if history is None else check_count("history", history)

    def init(
        self, point: tf.Tensor, max_iter: int | tf.Tensor
    ) -> StepArray | StepSlots:
        if not tf.is_tensor(max_iter):
            needed = max(1, max_iter - 1)
            slots = needed if self.history is None else min(self.history, needed)
            return StepSlots.empty(point, slots)
        if self.history is None:
            return StepArray.empty(point, max_iter)
        return StepSlots.empty(point, self.history)

    def take_memory(
        self, memory: StepArray | StepSlots, rows: tf.Tensor, num_steps: tf.Tensor
    ) -> StepArray | StepSlots:
        return memory.take(rows, num_steps)

    def step(
        self,
        evaluation: Evaluation,
        memory: StepArray | StepSlots,
        num_evaluations: tf.Tensor,
    ) -> tuple[tf.Tensor, StepArray | StepSlots]:
        direction, coefficient = memory.sweep(evaluation.residual, num_evaluations)
        pivot = 1.0 - coefficient
        bounded = tf.maximum(tf.abs(pivot), _SMALLEST_PIVOT)
        step = direction / tf.where(pivot < 0, -bounded, bounded)
        return evaluation.point + step, memory.push(step, num_evaluations)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, Broyden)}


class StepSlots(NamedTuple):
    """Steps in a static number of slots, newest first.

    When all slots are full, the method restarts and ignores the old steps.
    """

    steps: Columns  # zero in empty slots
    squared_norms: Columns  # (B, 1) each

    @classmethod
    def empty(cls, point: tf.Tensor, slots: int) -> Self:
        return cls(zero_columns(point, slots), zero_columns(point[:, :1], slots))

    def sweep(
        self, direction: tf.Tensor, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns d after the updates of all steps, and (s . d) / |s|^2 of the last."""
        slots = self.steps.size
        num_steps = (num_evaluations - 1) % slots
        for start in reversed(range(0, slots, _BLOCK)):
            oldest = min(start + _BLOCK, slots) - 1
            newest = max(start, 1)
            if oldest >= newest:
                direction = tf.cond(
                    num_steps > newest,
                    lambda d=direction, i=oldest, j=newest: self._sweep_block(
                        d, num_steps, i, j
                    ),
                    lambda d=direction: d,
                )
        return direction, self._coefficient(direction, num_steps, 0)

    def push(self, step: tf.Tensor, num_evaluations: tf.Tensor) -> StepSlots:
        """Returns the steps with a new one."""
        del num_evaluations
        return StepSlots(
            steps=self.steps.push(step),
            squared_norms=self.squared_norms.push(_finite_square(step)),
        )

    def take(self, rows: tf.Tensor, num_steps: tf.Tensor) -> StepSlots:
        """Returns the steps of some samples."""
        del num_steps
        slots: StepSlots = tree.map_structure(lambda leaf: tf.gather(leaf, rows), self)
        return slots

    def _sweep_block(
        self, direction: tf.Tensor, num_steps: tf.Tensor, oldest: int, newest: int
    ) -> tf.Tensor:
        for i in range(oldest, newest - 1, -1):
            coefficient = self._coefficient(direction, num_steps, i)
            direction += coefficient * self.steps.get(i - 1)
        return direction

    def _coefficient(
        self, direction: tf.Tensor, num_steps: tf.Tensor, i: int
    ) -> tf.Tensor:
        exists = num_steps > i
        step, square = self.steps.get(i), self.squared_norms.get(i)
        return _coefficient(direction, step, square, exists)


class StepArray(NamedTuple):
    """Steps of a solve with a dynamic budget, oldest first."""

    steps: tf.TensorArray  # (B, D) each
    squared_norms: tf.TensorArray  # (B, 1) each

    @classmethod
    def empty(cls, point: tf.Tensor, max_iter: tf.Tensor) -> Self:
        size = tf.maximum(max_iter - 1, 1)
        return cls(
            _array(point.dtype, size, point.shape),
            _array(point.dtype, size, [point.shape[0], 1]),
        )

    def sweep(
        self, direction: tf.Tensor, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `StepSlots.sweep`."""
        newest = num_evaluations - 2

        def update(i: tf.Tensor, direction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            coefficient = self._coefficient(direction, i)
            return i + 1, direction + coefficient * self.steps.read(i + 1)

        _, direction = tf.while_loop(
            lambda i, direction: i < newest, update, (0, direction)
        )
        return direction, tf.cond(
            newest >= 0,
            lambda: self._coefficient(direction, newest),
            lambda: tf.zeros_like(direction[:, :1]),
        )

    def push(self, step: tf.Tensor, num_evaluations: tf.Tensor) -> StepArray:
        """See `StepSlots.push`."""
        index = num_evaluations - 1
        return StepArray(
            self.steps.write(index, step),
            self.squared_norms.write(index, _finite_square(step)),
        )

    def take(self, rows: tf.Tensor, num_steps: tf.Tensor) -> StepArray:
        """See `StepSlots.take`."""
        return StepArray(
            _take_rows(self.steps, rows, num_steps),
            _take_rows(self.squared_norms, rows, num_steps),
        )

    def _coefficient(self, direction: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        return _coefficient(
            direction, self.steps.read(i), self.squared_norms.read(i), True
        )


def _finite_square(step: tf.Tensor) -> tf.Tensor:
    """Returns |s|^2, or zero if it overflows, so that the step is not used."""
    square = squared_norm(step)
    return tf.where(tf.math.is_finite(square), square, 0.0)


def _coefficient(
    direction: tf.Tensor,
    step: tf.Tensor,
    squared_norm: tf.Tensor,
    exists: bool | tf.Tensor,
) -> tf.Tensor:
    """Returns (s . d) / |s|^2, or zero if the step is missing or zero."""
    product = tf.reduce_sum(step * direction, axis=1, keepdims=True)
    exists = (squared_norm > 0) & exists
    return tf.where(exists, product, 0.0) / tf.where(exists, squared_norm, 1.0)


def _array(
    dtype: tf.DType, size: tf.Tensor, shape: tf.TensorShape | list[int | None]
) -> tf.TensorArray:
    return tf.TensorArray(dtype, size, clear_after_read=False, element_shape=shape)


def _take_rows(
    array: tf.TensorArray, rows: tf.Tensor, num_written: tf.Tensor
) -> tf.TensorArray:
    """Returns a new array with the given rows of the first `num_written` elements."""
    shape = [None, *array.element_shape[1:]]
    _, taken = tf.while_loop(
        lambda i, _: i < num_written,
        lambda i, taken: (i + 1, taken.write(i, tf.gather(array.read(i), rows))),
        (0, _array(array.dtype, array.size(), shape)),
    )
    return taken
