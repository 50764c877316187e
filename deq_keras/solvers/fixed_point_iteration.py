"""Plain and damped fixed-point iteration."""

import keras
import tensorflow as tf

from deq_keras.checks import check_fraction
from deq_keras.serialization import Config
from deq_keras.solvers.solver import Evaluation, FixedPointSolver


@keras.saving.register_keras_serializable(package="deq_keras")
class FixedPointIteration(FixedPointSolver):
    """Applies f again and again: z <- (1 - damping) z + damping f(z).

    The cheapest step there is, for cells that contract. With a fixed budget
    (`tol=None`) it is a weight-tied network of `max_iter` layers, and as the adjoint
    solver of `ImplicitGradient` it is the Neumann series of `max_iter` terms.

    Args:
        max_iter: Positive integer. Budget of function evaluations. Defaults to `30`.
        tol: Float >= 0, or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"` or `"abs"`. See `FixedPointSolver`. Defaults to `"rel"`.
        damping: Float in (0, 1]. The weight of the new value; `1.0` is undamped.
            Below 1 it tames oscillation (eigenvalues of df/dz near -1). Defaults to
            `1.0`.

    Example:

    >>> solver = deq_keras.solvers.FixedPointIteration(tol=1e-5)
    >>> solution = solver.solve(lambda z: 0.5 * z + 1.0, tf.zeros((1, 1)))
    >>> round(float(solution.value[0, 0]), 3)
    2.0
    """

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        damping: float = 1.0,
    ) -> None:
        super().__init__(max_iter, tol, stop_mode)
        self.damping = check_fraction("damping", damping)

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> tuple[()]:
        return ()

    def step(
        self, evaluation: Evaluation, memory: tuple[()], num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[()]]:
        if self.damping == 1.0:
            return evaluation.value, memory
        return evaluation.point + self.damping * evaluation.residual, memory

    def get_config(self) -> Config:
        return {**super().get_config(), "damping": self.damping}
