"""Broyden's good method with one stored vector an iteration."""

from typing import NamedTuple

import keras
import tensorflow as tf

from deq_keras.solvers.checks import check_count
from deq_keras.solvers.solver import FixedPointSolver

# Stored steps are swept in blocks of this many, and blocks without a step are skipped.
_BLOCK = 4

# The scaling 1 / (1 - c) of a step is bounded by 1 / _SMALLEST_PIVOT, which keeps the
# approximate Jacobian from turning singular (More and Trangenstein, 1976).
_SMALLEST_PIVOT = 1e-3


class _Steps(NamedTuple):
    """The steps s_k = z_{k+1} - z_k so far, the newest first; zero where none is."""

    steps: tuple  # (B, D) each
    squared_norms: tuple  # (B, 1) each


@keras.saving.register_keras_serializable("deq_keras")
class Broyden(FixedPointSolver):
    """Broyden's (good) method with full steps, for the root of g(z) = f(z) - z.

    The inverse Jacobian starts as -I and is updated by rank one so that it explains
    the last step. With full steps the update needs nothing but the steps themselves:

        d <- g(z_k)
        d <- d + s_{j+1} (s_j . d) / |s_j|^2        for j = 0 ... k - 2
        s_k = d / (1 - (s_{k-1} . d) / |s_{k-1}|^2),      z_{k+1} = z_k + s_k

    so that one state is stored an iteration, where the U V^T form of the reference
    stores two. The strongest of the solvers on cells that do not contract; Anderson
    is cheaper where both converge.

    Args:
        max_iter: int >= 1. Budget of function evaluations. Defaults to `30`.
        tol: float >= 0 or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"` or `"abs"`. See `FixedPointSolver`. Defaults to `"rel"`.
        history: int >= 1 or `None`. How many steps are stored; when they are full, the
            method starts anew from the current point. `None` stores them all.
            Defaults to `None`.
        max_iter_jitter: int in [0, max_iter). See `FixedPointSolver`. Defaults to `0`.

    Example:

    >>> solver = deq_keras.solvers.Broyden(tol=1e-5)
    >>> solution = solver.solve(lambda z: 3.0 - z**2, tf.ones((1, 1)))
    >>> round(float(solution.value[0, 0]), 4)  # plain iteration diverges here
    1.3028

    Reference:

    - Kelley (1995), "Iterative Methods for Linear and Nonlinear Equations", ch. 7.
    - Bai et al. (2019), "Deep Equilibrium Models", section 3.1.
    """

    def __init__(
        self,
        max_iter=30,
        tol=1e-3,
        stop_mode="rel",
        history=None,
        max_iter_jitter=0,
    ):
        super().__init__(max_iter, tol, stop_mode, max_iter_jitter)
        self.history = None if history is None else check_count("history", history)

    def init(self, point, max_iter):
        budget = self.max_iter if tf.is_tensor(max_iter) else max_iter
        slots = max(1, budget - 1)
        if self.history is not None:
            slots = min(slots, self.history)
        return _Steps(
            steps=(tf.zeros_like(point),) * slots,
            squared_norms=(tf.zeros_like(point[:, :1]),) * slots,
        )

    def step(self, evaluation, memory, num_evaluations):
        # Steps from before a restart stay in their slots and are passed over.
        num_steps = (num_evaluations - 1) % len(memory.steps)
        step = _quasi_newton_step(evaluation.residual, memory, num_steps)
        squared_norm = tf.reduce_sum(tf.square(step), axis=1, keepdims=True)
        memory = _Steps(
            steps=(step, *memory.steps[:-1]),
            squared_norms=(squared_norm, *memory.squared_norms[:-1]),
        )
        return evaluation.point + step, memory

    def get_config(self):
        return {**super().get_config(), "history": self.history}


def _quasi_newton_step(residual, memory, num_steps):
    slots = len(memory.steps)
    direction = residual
    for start in reversed(range(0, slots, _BLOCK)):
        oldest = min(start + _BLOCK, slots) - 1
        newest = max(start, 1)
        if oldest >= newest:
            direction = tf.cond(
                num_steps > newest,
                lambda d=direction, i=oldest, j=newest: _sweep(
                    d, memory, num_steps, i, j
                ),
                lambda d=direction: d,
            )
    pivot = 1.0 - _coefficient(direction, memory, num_steps, 0)
    bounded = tf.maximum(tf.abs(pivot), _SMALLEST_PIVOT)
    return direction / tf.where(pivot < 0, -bounded, bounded)


def _sweep(direction, memory, num_steps, oldest, newest):
    for i in range(oldest, newest - 1, -1):
        coefficient = _coefficient(direction, memory, num_steps, i)
        direction += coefficient * memory.steps[i - 1]
    return direction


def _coefficient(direction, memory, num_steps, i):
    """(s_i . d) / |s_i|^2, which is zero for a step that is not there."""
    squared_norm = memory.squared_norms[i]
    product = tf.reduce_sum(memory.steps[i] * direction, axis=1, keepdims=True)
    is_there = (squared_norm > 0) & (num_steps > i)
    return tf.where(is_there, product, 0.0) / tf.where(is_there, squared_norm, 1.0)
