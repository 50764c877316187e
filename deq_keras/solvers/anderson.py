"""Anderson acceleration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from deq_keras.core.checks import (
    check_choice,
    check_count,
    check_non_negative,
    check_positive_fraction,
)
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.solvers.columns import Columns, zero_columns
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.stopping import Evaluation

# With at most this many columns, solves hardly stagnate: of 600 transport problems with
# near-kinks, 99.8 % converged in 100 evaluations with 4 columns and 94.5 % with 8, or
# 99.2 % with plain steps for stalled samples.
_SAFE_COLUMNS = 4

_RIDGE_MODES = ("relative", "absolute")


class _History(NamedTuple):
    """The last evaluations, newest first. Unfilled columns are zero.

    The last two fields are `(B, 1)`. They are empty with few columns.
    """

    values: Columns  # f(z_i)
    residuals: Columns  # g_i = f(z_i) - z_i
    products: Columns  # of numbers |g_i|^2 + r_i, and g_i . g_j for j > i
    smallest: Any = ()  # |g|^2
    num_stalled: Any = ()  # evaluations since the smallest |g|^2


@keras.saving.register_keras_serializable(package="deq_keras")
class Anderson(FixedPointSolver):
    """Anderson acceleration, which mixes the last `history` values of f.

    The mixture minimizes the mixed residual. Every step solves, for each sample,

        min_a |sum_i a_i g_i|^2 + sum_i r_i a_i^2    subject to    sum_i a_i = 1
        z <- sum_i a_i (f(z_i) - (1 - mixing) g_i)

    It needs few evaluations and little memory (two states per column of history, for
    any budget). `DEQ` selects it by default for gradients of an equilibrium, such as
    `NeumannGradient`.

    With kinks, as in max, clipping or optimal transport, old columns can mislead the
    mixture. With more than 4 columns, a sample whose residual has not reached a new
    minimum for `history` evaluations therefore takes plain steps until it does.

    Args:
        max_iter: Positive integer. Budget of function evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. See `FixedPointSolver`. Defaults to `1e-3`.
        stop_mode: `"rel"`, `"abs"`, `"rel_max"` or `"abs_max"`. See `FixedPointSolver`.
            Defaults to `"rel"`.
        history: Positive integer. Number of mixed evaluations. A value above 4 saves
            little at a tolerance of 1e-3, and each evaluation in the history costs two
            passes over the state. Defaults to `4`.
        ridge: Non-negative float. Regularizes the mixture. Defaults to `1e-5`.
        ridge_mode: `"relative"` uses r_i = ridge |g_i|^2, which is independent of the
            scale of the residual. `"absolute"` uses r_i = ridge, like the reference,
            locuslab/deq of Bai et al. (2021), with 1e-4. `"absolute"` limits the
            accuracy at small residuals, such as in the adjoint solve of a mean loss.
            Defaults to `"relative"`.
        mixing: Float in (0, 1]. Fraction of the residual in a step, from the second
            step on. Defaults to `1.0`.
        compact: Boolean. Whether to remove converged samples from the batch. See
            `FixedPointSolver`. Defaults to `False`.

    Example:

    >>> solver = deq_keras.solvers.Anderson(tol=1e-5)
    >>> request = deq_keras.solvers.SolveRequest(tf.zeros((1, 3)))
    >>> solution = solver.solve(tf.cos, request)
    >>> round(float(solution.value[0, 0]), 4)
    0.7391

    Reference:

    - Walker and Ni (2011), "Anderson acceleration for fixed-point iterations".
    - Bai et al. (2021), "Stabilizing Equilibrium Models by Jacobian Regularization".
    """

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        stop_mode: str = "rel",
        history: int = 4,
        ridge: float = 1e-5,
        ridge_mode: str = "relative",
        mixing: float = 1.0,
        compact: bool = False,
    ) -> None:
        super().__init__(max_iter, tol, stop_mode, compact)
        self.history = check_count("history", history)
        self.ridge = check_non_negative("ridge", ridge)
        self.ridge_mode = check_choice("ridge_mode", ridge_mode, _RIDGE_MODES)
        self.mixing = check_positive_fraction("mixing", mixing)

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> _History:
        columns = self.history
        if point.shape[1] is not None:
            # More residuals would be linearly dependent, and only the ridge would
            # determine the weights.
            columns = min(columns, point.shape[1] + 1)
        if not tf.is_tensor(max_iter):
            columns = min(columns, max(1, max_iter - 1))
        zero = tf.zeros_like(point[:, :1])
        return _History(
            values=zero_columns(point, columns),
            residuals=zero_columns(point, columns),
            products=zero_columns((zero,) * columns, columns),
            smallest=zero + point.dtype.max if columns > _SAFE_COLUMNS else (),
            num_stalled=zero if columns > _SAFE_COLUMNS else (),
        )

    def step(
        self, evaluation: Evaluation, memory: _History, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, _History]:
        history, newest = self._push(memory, evaluation)
        weights = self._weights(evaluation.squared_norm, newest, history.products)
        columns = len(weights)
        if columns > _SAFE_COLUMNS:
            has_fallen = evaluation.squared_norm < memory.smallest
            num_stalled = memory.num_stalled + 1.0
            num_stalled = tf.where(has_fallen, tf.zeros_like(num_stalled), num_stalled)
            has_stalled = num_stalled >= columns
            plain = [1.0] + [0.0] * (columns - 1)
            weights = [
                tf.where(has_stalled, tf.constant(one, weight.dtype), weight)
                for one, weight in zip(plain, weights, strict=True)
            ]
            history = history._replace(
                smallest=tf.minimum(evaluation.squared_norm, memory.smallest),
                num_stalled=num_stalled,
            )
        next_point = _mix(weights, history.values)
        if self.mixing < 1.0:
            held_back = tf.constant(1.0 - self.mixing, next_point.dtype)
            held_back = tf.where(num_evaluations > 1, held_back, 0.0)
            next_point -= held_back * _mix(weights, history.residuals)
        return next_point, history

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, Anderson)}

    def _push(
        self, history: _History, evaluation: Evaluation
    ) -> tuple[_History, tuple[tf.Tensor, ...]]:
        """Puts the newest evaluation in front and drops the oldest.

        Also returns the newest products. XLA computes all products of a state in one
        pass if they have two uses each.
        """
        residual, squared_norm = evaluation.residual, evaluation.squared_norm
        residuals = history.residuals.push(residual)
        products = [
            tf.reduce_sum(residual * residuals.get(age), axis=1, keepdims=True)
            for age in range(1, residuals.size)
        ]  # (B, 1) each
        if self.ridge_mode == "relative":
            diagonal = (1.0 + self.ridge) * squared_norm
        else:
            diagonal = squared_norm + self.ridge
        newest = (diagonal, *products)
        history = _History(
            values=history.values.push(evaluation.value),
            residuals=residuals,
            products=history.products.push(newest),
        )
        return history, newest

    def _weights(
        self,
        squared_norm: tf.Tensor,
        newest: tuple[tf.Tensor, ...],
        older: Columns,
    ) -> list[tf.Tensor]:
        size = len(newest)
        rows = [newest, *(older.numbers(age) for age in range(1, size))]
        rows = [row[: size - age] for age, row in enumerate(rows)]
        # Only the ratios of the weights count. With 1 instead of |g|^2, derivatives, of
        # squared pivots, would overflow at residuals that are rounding errors.
        scale = tf.stop_gradient(squared_norm)
        weights = _solve_positive_definite(rows, scale, self._ridge)
        # A plain step follows if squares overflow, or if the newest residual is zero.
        total = tf.add_n(weights)
        is_usable = tf.math.is_finite(total / total)
        # A derivative of 1 / 0 would be NaN, also where it is not used.
        total = tf.where(is_usable, total, 1.0)
        return [
            tf.where(is_usable, weight, float(age == 0)) / total
            for age, weight in enumerate(weights)
        ]

    def _ridge(self, diagonal: tf.Tensor) -> tf.Tensor:
        """Returns r_i from |g_i|^2 + r_i; zero for an unfilled column."""
        if self.ridge_mode == "relative":
            return self.ridge / (1.0 + self.ridge) * diagonal
        return tf.minimum(diagonal, self.ridge)


def _mix(weights: list[tf.Tensor], columns: Columns) -> tf.Tensor:
    terms = [weight * columns.get(age) for age, weight in enumerate(weights)]
    return tf.add_n(terms)  # (B, D)


def _solve_positive_definite(
    rows: list[tuple[tf.Tensor, ...]],
    scale: tf.Tensor,
    floor: Callable[[tf.Tensor], tf.Tensor],
) -> list[tf.Tensor]:
    """Solves a small symmetric system A x = s 1 for every sample by elimination.

    Uses only elementary operations: LiteRT and ONNX do not support `tf.linalg` solvers.
    On few numbers, each operation costs the same, so there are as few as possible;
    operations on whole rows or matrices `(batch, size)` would be slower, because of the
    slices. Pivoting is unnecessary, because A is positive definite. A row of zeros, as
    of an unfilled column, gets the solution zero.

    Args:
        rows: List of tuples. `rows[i][j - i]` is the entry (i, j), j >= i, `(batch,
            1)`.
        scale: Tensor `(batch, 1)`, the number s.
        floor: Function from an entry (i, i) to a lower bound of its pivot in exact
            arithmetic, which protects against rounding errors.

    Returns:
        The solution, a list of `(batch, 1)` tensors.
    """
    divide, size = tf.math.divide_no_nan, len(rows)
    right = [scale] * size
    remaining = [list(row) for row in rows]
    pivots, factors = [], []
    for i, (pivot, *row) in enumerate(remaining):
        if i > 0:
            pivot = tf.maximum(pivot, floor(rows[i][0]))
        pivots.append(pivot)
        factors.append([divide(entry, pivot) for entry in row])
        for j, factor in enumerate(factors[i], i + 1):
            for k in range(j, size):
                remaining[j][k - j] -= factor * row[k - i - 1]
            right[j] -= factor * right[i]
    solution: list[tf.Tensor] = [None] * size
    for i in reversed(range(size)):
        solution[i] = divide(right[i], pivots[i])
        for j, factor in enumerate(factors[i], i + 1):
            solution[i] -= factor * solution[j]
    return solution
