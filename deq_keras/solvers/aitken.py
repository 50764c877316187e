"""Fixed-point iteration with a secant step size for each sample."""

from typing import NamedTuple

import keras
import tensorflow as tf

from deq_keras.core.checks import check_positive
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import squared_norm
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.stopping import Evaluation


class _Secant(NamedTuple):
    """The last step of each sample."""

    residual: tf.Tensor  # (B, D)
    factor: tf.Tensor  # (B, 1)


@keras.saving.register_keras_serializable(package="deq_keras")
class Aitken(FixedPointSolver):
    """Aitken's method for vectors (Irons-Tuck): z <- z + w g with g = f(z) - z.

    The factor w of each sample follows from its last two residuals:

        w <- -w <g_old, g - g_old> / |g - g_old|^2

    It stores one state and solves no linear systems. For f(z) = a z + b with a single
    feature, it needs two evaluations if |1 - a| is between 1 / `limit` and `limit`; a
    third confirms the result. The method helps most if one eigenvalue of df/dz
    dominates, and little if eigenvalues are complex. `Anderson` usually needs fewer
    evaluations, but stores eight states.

    Args:
        max_iter: Positive integer. Budget of function evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"`, `"abs"`, `"rel_max"` or `"abs_max"`. See `FixedPointSolver`.
            Defaults to `"rel"`.
        limit: Float > 1. A factor with a magnitude outside of [1 / `limit`, `limit`] is
            replaced by 1, a plain step: tiny factors would stall a solve. Defaults to
            `10.0`.
        compact: Boolean. Whether to remove converged samples from the batch. See
            `FixedPointSolver`. Defaults to `False`.

    Example:

    >>> solver = deq_keras.solvers.Aitken(tol=1e-6)
    >>> request = deq_keras.solvers.SolveRequest(tf.zeros((1, 1)))
    >>> solution = solver.solve(lambda z: 0.75 * z + 1.0, request)
    >>> float(solution.value[0, 0]), int(solution.num_evaluations[0])
    (4.0, 3)

    Reference:

    - Irons and Tuck (1969), "A version of the Aitken accelerator for computer
      iteration".
    """

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        limit: float = 10.0,
        compact: bool = False,
    ) -> None:
        super().__init__(max_iter, tol, stop_mode, compact)
        self.limit = check_positive("limit", limit)
        if self.limit <= 1:
            raise ValueError(
                "`limit` must be larger than 1, the factor of a plain step. "
                f"Received: limit={limit}."
            )

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> _Secant:
        return _Secant(tf.zeros_like(point), tf.ones_like(point[:, :1]))

    def step(
        self, evaluation: Evaluation, memory: _Secant, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, _Secant]:
        residual = evaluation.residual
        change = residual - memory.residual
        product = tf.reduce_sum(memory.residual * change, axis=1, keepdims=True)
        size = squared_norm(change)
        factor = -memory.factor * product / tf.where(size > 0, size, 1.0)
        magnitude = tf.abs(factor)
        # In the first step, the old residual is zero, so the factor is zero.
        is_usable = (magnitude >= 1 / self.limit) & (magnitude <= self.limit)
        factor = tf.where(is_usable, factor, 1.0)
        return evaluation.point + factor * residual, _Secant(residual, factor)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, Aitken)}
