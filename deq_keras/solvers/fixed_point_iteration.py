"""Plain, damped and noisy fixed-point iteration."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from deq_keras.core.checks import (
    check_non_negative,
    check_optional_count,
    check_positive_fraction,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.stopping import Evaluation


class _Patience(NamedTuple):
    """Progress of each sample, tensors `(batch, 1)`."""

    damping: tf.Tensor
    smallest: tf.Tensor  # squared residual
    num_stalled: tf.Tensor  # evaluations since it fell


@keras.saving.register_keras_serializable(package="deq_keras")
class FixedPointIteration(FixedPointSolver):
    """Iterates f: z <- (1 - damping) z + damping f(z) + noise e.

    It has the cheapest step and suits cells that contract. With a fixed budget
    (`tol=None`), it is a weight-tied network of `max_iter` layers. As the adjoint
    solver of `ImplicitGradient`, it is the Neumann series with `max_iter` terms.

    Args:
        max_iter: Positive integer. Budget of function evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"`, `"abs"`, `"rel_max"` or `"abs_max"`. See `FixedPointSolver`.
            Defaults to `"rel"`.
        damping: Float in (0, 1]. Weight of the new value. Values below 1 damp
            oscillations (eigenvalues of df/dz near -1). Defaults to `1.0`, undamped.
        noise: Non-negative float. Standard deviation of e, drawn for each sample and
            step from the seed of the solve. Solves without a seed, as at inference, are
            noiseless. Defaults to `0.0`.
        patience: Positive integer or `None`. Multiplies the damping of a sample by
            `factor` whenever its residual has not reached a new minimum for this many
            evaluations. Defaults to `None`, never.
        factor: Float in (0, 1]. See `patience`. Defaults to `0.9`.
        compact: Boolean. Whether to remove converged samples from the batch. See
            `FixedPointSolver`. Defaults to `False`.

    Raises:
        ValueError: If the noise makes the tolerance unreachable: if the entries of the
            state have a mean square of one, the relative residual does not fall below
            `noise`.

    Example:

    >>> solver = deq_keras.solvers.FixedPointIteration(tol=1e-5)
    >>> solution = solver.solve(
    ...     lambda z: 0.5 * z + 1.0, deq_keras.solvers.SolveRequest(tf.zeros((1, 1)))
    ... )
    >>> round(float(solution.value[0, 0]), 3)
    2.0
    """

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        damping: float = 1.0,
        noise: float = 0.0,
        patience: int | None = None,
        factor: float = 0.9,
        compact: bool = False,
    ) -> None:
        super().__init__(max_iter, tol, stop_mode, compact)
        self.damping = check_positive_fraction("damping", damping)
        self.noise = check_non_negative("noise", noise)
        self.patience = check_optional_count("patience", patience)
        self.factor = check_positive_fraction("factor", factor)
        self._check_noise()

    def init(
        self, point: tf.Tensor, max_iter: int | tf.Tensor
    ) -> _Patience | tuple[()]:
        if self.patience is None:
            return ()
        zero = tf.zeros_like(point[:, :1])
        return _Patience(
            damping=zero + self.damping,
            smallest=zero + point.dtype.max,
            num_stalled=zero,
        )

    def step(
        self,
        evaluation: Evaluation,
        memory: Any,
        num_evaluations: tf.Tensor,
    ) -> tuple[tf.Tensor, _Patience | tuple[()]]:
        if self.patience is not None:
            squared_norm = tf.stop_gradient(evaluation.squared_norm)
            memory = self._adapt_damping(memory, squared_norm)
            return evaluation.point + memory.damping * evaluation.residual, memory
        if self.damping == 1.0:
            return evaluation.value, memory
        return evaluation.point + self.damping * evaluation.residual, memory

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, FixedPointIteration)}

    def _adapt_damping(self, memory: _Patience, squared_norm: tf.Tensor) -> _Patience:
        has_fallen = squared_norm < memory.smallest
        none = tf.zeros_like(memory.num_stalled)
        num_stalled = tf.where(has_fallen, none, memory.num_stalled + 1.0)
        has_stalled = num_stalled >= self.patience
        return _Patience(
            damping=tf.where(has_stalled, self.factor * memory.damping, memory.damping),
            smallest=tf.where(has_fallen, squared_norm, memory.smallest),
            num_stalled=tf.where(has_stalled, none, num_stalled),
        )

    def _check_noise(self) -> None:
        if self.tol is None or tf.is_tensor(self.tol):
            return
        if 0 < self.noise and self.tol <= self.noise:
            raise ValueError(
                "The noise puts the tolerance out of reach: the relative residual of a "
                "state whose entries have a mean square of one does not fall below "
                "`noise`. Use tol=None, a larger `tol` or less `noise`. Received: "
                f"noise={self.noise}, tol={self.tol}."
            )
