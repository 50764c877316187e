"""Broyden's good method with one stored vector an iteration."""

import keras
import tensorflow as tf

from deq_keras.checks import check_count
from deq_keras.serialization import Config
from deq_keras.solvers.broyden_steps import StepArray, StepSlots
from deq_keras.solvers.evaluation import Evaluation
from deq_keras.solvers.solver import FixedPointSolver

# The scaling 1 / (1 - c) of a step is bounded by 1 / _SMALLEST_PIVOT, which keeps the
# approximate Jacobian from turning singular (More and Trangenstein, 1976).
_SMALLEST_PIVOT = 1e-3


@keras.saving.register_keras_serializable(package="deq_keras")
class Broyden(FixedPointSolver):
    """Broyden's (good) method with full steps, for the root of g(z) = f(z) - z.

    The inverse Jacobian starts as -I and is updated by rank one so that it explains
    the last step. With full steps the update needs nothing but the steps themselves:

        d <- g(z_k)
        d <- d + s_{j+1} (s_j . d) / |s_j|^2        for j = 0 ... k - 2
        s_k = d / (1 - (s_{k-1} . d) / |s_{k-1}|^2),      z_{k+1} = z_k + s_k

    so that one state is stored an iteration, where the U V^T form of the reference
    (locuslab/deq of Bai et al., 2019) stores two. The strongest of the solvers on cells
    that do not contract; Anderson is cheaper where both converge.

    Args:
        max_iter: Positive integer. Budget of function evaluations. Defaults to `30`.
        tol: Float >= 0, or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"`, `"abs"`, `"rel_max"` or `"abs_max"`. See `FixedPointSolver`.
            Defaults to `"rel"`.
        history: Positive integer or `None`. How many steps are stored; when they are
            full, the method starts anew from the current point. `None` stores them all.
            Defaults to `None`.

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
        return {**super().get_config(), "history": self.history}
