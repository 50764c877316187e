"""Broyden's good method with one stored vector per iteration."""

from typing import NamedTuple

import keras
import tensorflow as tf

from deq_keras.core.checks import check_count
from deq_keras.core.internals import is_compiled_by_xla
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import squared_norm
from deq_keras.solvers.columns import Slots
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.stopping import Evaluation

# Bounds the scaling 1 / (1 - c) of a step by 1 / _SMALLEST_PIVOT, so that the
# approximate Jacobian does not become singular (More and Trangenstein, 1976).
_SMALLEST_PIVOT = 1e-3

# XLA's programs take this many stored steps in an iteration.
_BLOCK = 4


class _Steps(NamedTuple):
    """The steps s_j since the start or the last restart, and |s_j|^2."""

    steps: Slots  # (B, D) each
    squared_norms: Slots  # (B, 1) each


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

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> _Steps:
        return self._no_steps(point, max_iter, allows_arrays=True)

    def init_without_arrays(
        self, point: tf.Tensor, max_iter: int | tf.Tensor
    ) -> _Steps:
        return self._no_steps(point, max_iter, allows_arrays=False)

    def take_memory(
        self, memory: _Steps, rows: tf.Tensor, num_steps: tf.Tensor
    ) -> _Steps:
        num_steps = tf.minimum(num_steps, memory.steps.size)
        return _Steps(*(slots.take(rows, num_steps) for slots in memory))

    def step(
        self, evaluation: Evaluation, memory: _Steps, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, _Steps]:
        steps, squared_norms = memory
        slots = steps.size
        # When all slots are full, the method restarts and ignores the old steps.
        num_steps = (num_evaluations - 1) % slots

        def coefficient(
            direction: tf.Tensor, step: tf.Tensor, square: tf.Tensor
        ) -> tf.Tensor:
            """Returns (s_j . d) / |s_j|^2, or zero if the step is missing or zero."""
            product = tf.reduce_sum(step * direction, axis=1, keepdims=True)
            return tf.math.divide_no_nan(product, square)

        # 1. Update d = g(z_k) with all steps, oldest first. In a program of XLA, an
        # iteration costs more than a few updates without effect.
        by_xla = is_compiled_by_xla()
        newest = tf.maximum(num_steps - 1, 0)

        def update(j: tf.Tensor, direction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            step = steps.read(j)
            if not by_xla:
                factor = coefficient(direction, step, squared_norms.read(j))
                return j + 1, direction + factor * steps.read(j + 1)
            for _ in range(_BLOCK):
                square = squared_norms.read(tf.minimum(j, newest))
                square = tf.where(j < newest, square, 0.0)
                factor = coefficient(direction, step, square)
                j += 1
                step = steps.read(tf.minimum(j, newest))
                direction += factor * step
            return j, direction

        _, direction = tf.while_loop(
            lambda j, _: j < newest,
            update,
            (tf.constant(0), evaluation.residual),
            parallel_iterations=1,
            # Only XLA needs it, for the gradient.
            maximum_iterations=slots if by_xla else None,
        )

        # 2. Scale d with the newest step, which gives the next one. After a restart,
        # its slot has an old step.
        square = tf.where(num_steps > 0, squared_norms.read(newest), 0.0)
        pivot = 1.0 - coefficient(direction, steps.read(newest), square)
        bounded = tf.maximum(tf.abs(pivot), _SMALLEST_PIVOT)
        step = direction / tf.where(pivot < 0, -bounded, bounded)

        # 3. Store the step. If its square overflows, it is not used.
        square = squared_norm(step)
        square = tf.where(tf.math.is_finite(square), square, 0.0)
        memory = _Steps(
            steps.write(num_steps, step), squared_norms.write(num_steps, square)
        )
        return evaluation.point + step, memory

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, Broyden)}

    def _no_steps(
        self, point: tf.Tensor, max_iter: int | tf.Tensor, allows_arrays: bool
    ) -> _Steps:
        if tf.is_tensor(max_iter):
            count = self.history or tf.maximum(max_iter - 1, 1)
        else:
            needed = max(1, max_iter - 1)
            count = min(self.history or needed, needed)
        return _Steps(
            Slots.zeros(point, count, allows_arrays),
            Slots.zeros(point[:, :1], count, allows_arrays),
        )
