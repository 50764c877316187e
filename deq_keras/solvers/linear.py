"""Krylov solvers of linear problems, for the adjoint equation of `ImplicitGradient`."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.checks import check_optional_count
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.request import SolveRequest, check_request
from deq_keras.core.serialization import Config, arguments_of
from deq_keras.core.structure import (
    Nest,
    StateStructure,
    squared_norm,
    where_rows,
)
from deq_keras.solvers.columns import Columns, zero_columns
from deq_keras.solvers.solution import Solution
from deq_keras.solvers.solver import FixedPointSolver
from deq_keras.solvers.stopping import Evaluation

# Number of columns without `restart`, as in most libraries.
_RESTART = 20

# A sweep processes columns in blocks of this size, and skips empty blocks.
_BLOCK = 4

# |r|^2 must shrink by this factor in a step. Otherwise the next direction is the newest
# column instead of r, which would add almost nothing to the subspace (Jiranek and
# Rozloznik, 2010, "Adaptive version of Simpler GMRES").
_SLOWEST = 0.998


class LinearSolver(FixedPointSolver):
    """Solves linear problems z = L z + c. Base class of `GMRES` and `BiCGStab`.

    An evaluation of f(z) = L z + c costs one product with L. The solver computes
    products of I - L from differences of the residuals f(z) - z. Every evaluation is
    thus an iterate with a true residual for the stopping rule and the statistics.

    The solve starts from z = 0, where the residual c is known. Its first evaluation, at
    c, therefore already yields a product. Residuals are relative to c: |f(z) - z| /
    |c|. If the system is nearly singular, z grows, and a residual relative to z would
    be small without a solution. A sample with a singular system ends with the status
    `MAX_ITER` and its smallest residual.

    Args:
        max_iter: Positive integer. Budget of evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. A sample converges when its residual is at
            most `tol`. `None` uses the whole budget. Defaults to `1e-3`.
    """

    def __init__(self, max_iter: int = 30, tol: float | None = 1e-3) -> None:
        # `solve` scales c to a norm of one.
        super().__init__(max_iter, tol, stop_mode="abs")

    def solve(
        self, problem: FixedPointProblem | Callable[[Nest], Nest], request: SolveRequest
    ) -> Solution:
        """See `FixedPointSolver.solve`.

        Args:
            problem: A `FixedPointProblem` with a `constant_term`, such as the adjoint
                equation of `ImplicitGradient`.
            request: A `SolveRequest`. The constant term replaces its initial state.

        Raises:
            ValueError: If the problem is not linear.
        """
        problem = FixedPointProblem.of(problem)
        constant = problem.constant_term
        if constant is None:
            raise ValueError(
                f"{type(self).__name__} solves linear problems only, such as the "
                "adjoint equation: use it as ImplicitGradient(solver=...). For other "
                "problems, use Anderson or Broyden. Expected: a FixedPointProblem "
                "whose function has a `constant_term`. Received: problem="
                f"{problem.fn!r}."
            )
        request = check_request(request, needs_state=False)
        norm = _norm(StateStructure(constant).to_matrix(constant))
        norm = tf.where(tf.equal(norm, 0.0), tf.ones_like(norm), norm)

        def apply_scaled(state: Nest, _: Nest) -> Nest:
            return _multiply(problem(_multiply(state, norm)), 1.0 / norm)

        unit = FixedPointProblem(apply_scaled, is_usable=problem.is_usable)
        start = _multiply(constant, 1.0 / norm)
        solution = super().solve(unit, request._replace(initial_state=start))
        failed = nonfinite.has_no_evaluation(solution)
        value, point = (
            where_rows(failed, constant, _multiply(state, norm))
            for state in (solution.value, solution.point)
        )
        return solution._replace(value=value, point=point)

    def get_config(self) -> Config:
        return arguments_of(self, LinearSolver)


def _multiply(state: Nest, factor: tf.Tensor) -> Nest:
    """Returns a state times a number per sample, `(batch, 1)`."""

    def multiply(leaf: tf.Tensor) -> tf.Tensor:
        shape = [-1] + [1] * (leaf.shape.rank - 1)
        return leaf * tf.cast(tf.reshape(factor, shape), leaf.dtype)

    return tree.map_structure(multiply, state)


class _Subspace(NamedTuple):
    """Directions p and the changes q of the residual along them, newest first.

    The changes are orthonormal. Unfilled and dependent columns are zero.
    """

    point: tf.Tensor  # (B, D), where the next direction starts
    residual: tf.Tensor  # (B, D), there
    smallest: tf.Tensor  # (B, 1), |r|^2 at the minimizer
    directions: Columns
    changes: Columns  # (L - I) p


@keras.saving.register_keras_serializable(package="deq_keras")
class GMRES(LinearSolver):
    """Restarted GMRES, for the adjoint equation of `ImplicitGradient`.

    Every evaluation adds a dimension to the Krylov space of each sample, and the point
    x with the smallest residual r in that space determines the next evaluation:

        x, r <- argmin over x in z + span(p) of |r|,    z <- x + r

    It needs the fewest products of all adjoint solvers, and converges where plain
    iteration diverges. It stores two states per column.

    Args:
        max_iter: Positive integer. Budget of evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. See `LinearSolver`. Defaults to `1e-3`.
        restart: Positive integer, at most `max_iter`, or `None`. Number of columns.
            When it is reached, the method restarts from x. `None` stores up to 20.
            Defaults to `None`.

    Example:

    >>> gradient = deq_keras.gradients.ImplicitGradient(
    ...     deq_keras.solvers.GMRES(tol=1e-4)
    ... )

    Reference:

    - Saad and Schultz (1986), "GMRES: A generalized minimal residual algorithm for
      solving nonsymmetric linear systems".
    - Walker and Ni (2011), "Anderson acceleration for fixed-point iterations".
    """

    def __init__(
        self,
        max_iter: int = 30,
        tol: float | None = 1e-3,
        restart: int | None = None,
    ) -> None:
        super().__init__(max_iter, tol)
        self.restart = check_optional_count("restart", restart)
        if restart is not None and restart > max_iter:
            raise ValueError(
                "`restart` must be at most `max_iter`: further columns are never "
                f"filled. Received: restart={restart}, max_iter={max_iter}."
            )

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> _Subspace:
        columns = self._num_columns
        if not tf.is_tensor(max_iter):
            columns = min(columns, max(1, max_iter - 1))
        zeros = tf.zeros_like(point)
        # The solve starts from the constant term, which is the residual at zero.
        return _Subspace(
            point=zeros,
            residual=point,
            smallest=squared_norm(point),
            directions=zero_columns(point, columns),
            changes=zero_columns(point, columns),
        )

    def step(
        self, evaluation: Evaluation, memory: _Subspace, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, _Subspace]:
        # 1. The way from the last start to the evaluated point is a new direction. The
        # residual is affine in the point, so its change along the direction is known.
        num_columns = (num_evaluations - 1) % self._num_columns
        memory = _with_column(memory, evaluation, num_columns)

        # 2. The changes are orthonormal. Without its components along them, the
        # residual is the smallest one in the subspace, and belongs to its minimizer.
        residual, point = _without_changes(
            memory, evaluation.residual, evaluation.point, num_columns + 1
        )
        smallest = squared_norm(residual)

        # 3. The next evaluation is one plain step from the minimizer. If the residual
        # hardly fell, that step repeats an old direction up to rounding; the newest
        # change is a direction that the subspace lacks.
        is_full = tf.equal(num_columns + 1, self._num_columns)
        is_fast = (smallest < _SLOWEST * memory.smallest) | is_full
        direction = tf.where(
            is_fast, residual, tf.sqrt(smallest) * memory.changes.get(0)
        )

        # 4. The next direction starts here; after a restart, at the minimizer.
        start = tf.cond(
            is_full,
            lambda: (point, residual),
            lambda: (evaluation.point, evaluation.residual),
        )
        memory = memory._replace(point=start[0], residual=start[1], smallest=smallest)
        return point + direction, memory

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, GMRES)}

    @property
    def _num_columns(self) -> int:
        return _RESTART if self.restart is None else self.restart


def _with_column(
    memory: _Subspace, evaluation: Evaluation, num_columns: tf.Tensor
) -> _Subspace:
    """Returns the subspace with the direction to the newest evaluation in front."""
    whole = evaluation.residual - memory.residual
    change, direction = _without_changes(
        memory, whole, evaluation.point - memory.point, num_columns
    )
    # A change below the rounding errors has a random direction.
    is_independent = _is_significant(change, whole, evaluation.point)
    squared = tf.where(is_independent, squared_norm(change), 1.0)
    scale = tf.where(is_independent, tf.math.rsqrt(squared), 0.0)
    return memory._replace(
        directions=memory.directions.push(scale * direction),
        changes=memory.changes.push(scale * change),
    )


def _without_changes(
    memory: _Subspace, residual: tf.Tensor, point: tf.Tensor, num_columns: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Removes the components along the changes of the newest columns from a residual.

    Args:
        memory: The `_Subspace`.
        residual: Tensor `(batch, features)`. A residual, or a change of it.
        point: Tensor `(batch, features)`. The point, or the direction, it belongs to.
        num_columns: Int32 scalar tensor.

    Returns:
        The residual, and the point that it belongs to.
    """
    size = memory.changes.size
    for first in range(0, size, _BLOCK):
        residual, point = tf.cond(
            num_columns > first,
            functools.partial(
                _without_block,
                memory,
                range(first, min(first + _BLOCK, size)),
                residual,
                point,
                num_columns,
            ),
            lambda residual=residual, point=point: (residual, point),
        )
    return residual, point


def _without_block(
    memory: _Subspace,
    ages: range,
    residual: tf.Tensor,
    point: tf.Tensor,
    num_columns: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    for age in ages:
        change = memory.changes.get(age)
        component = tf.where(age < num_columns, _dot(change, residual), 0.0)
        residual -= component * change
        point -= component * memory.directions.get(age)
    return residual, point


class _BiorthogonalState(NamedTuple):
    """The variables of BiCGStab. The first half of an iteration only computes some."""

    point: tf.Tensor  # (B, D): x
    residual: tf.Tensor  # (B, D): r, after the first half s
    shadow: tf.Tensor  # (B, D): the residual that r is kept biorthogonal to
    direction: tf.Tensor  # (B, D): p
    image: tf.Tensor  # (B, D): v = (I - L) p
    rho: tf.Tensor  # (B, 1): shadow . r
    alpha: tf.Tensor  # (B, 1)


@keras.saving.register_keras_serializable(package="deq_keras")
class BiCGStab(LinearSolver):
    """BiCGStab, for the adjoint equation of `ImplicitGradient`.

    It stores five states for any budget, while `GMRES` stores two per evaluation.
    BiCGStab needs more products than `GMRES`, two per iteration:

        v = (I - L) p,    x <- x + alpha p,    s = r - alpha v
        t = (I - L) s,    x <- x + omega s,    r = s - omega t

    It restarts from x if a scalar of the method becomes zero. Rounding errors
    accumulate in r: in float32, the solve of a system that is far from a contraction
    may stall at a residual of about 1e-4.

    Args:
        max_iter: Positive integer. Budget of evaluations. Defaults to `30`.
        tol: Non-negative float or `None`. See `LinearSolver`. Defaults to `1e-3`.

    Example:

    >>> gradient = deq_keras.gradients.ImplicitGradient("bicgstab")

    Reference:

    - van der Vorst (1992), "Bi-CGSTAB: A fast and smoothly converging variant of Bi-CG
      for the solution of nonsymmetric linear systems".
    """

    def init(self, point: tf.Tensor, max_iter: int | tf.Tensor) -> _BiorthogonalState:
        zeros = tf.zeros_like(point)
        # The solve starts from the constant term, which is the residual at zero.
        return _BiorthogonalState(
            point=zeros,
            residual=point,
            shadow=point,
            direction=point,
            image=zeros,
            rho=squared_norm(point),
            alpha=zeros[:, :1],
        )

    def step(
        self,
        evaluation: Evaluation,
        memory: _BiorthogonalState,
        num_evaluations: tf.Tensor,
    ) -> tuple[tf.Tensor, _BiorthogonalState]:
        # `step` chose the point x + p or x + s for the evaluation.
        image = memory.residual - evaluation.residual
        return tf.cond(
            tf.equal(num_evaluations % 2, 1),
            lambda: _first_half(memory, image),
            lambda: _second_half(memory, image),
        )


def _first_half(
    memory: _BiorthogonalState, image: tf.Tensor
) -> tuple[tf.Tensor, _BiorthogonalState]:
    product = _dot(memory.shadow, image)
    exists = tf.abs(product) > _epsilon(image) * _lengths(memory.shadow, image)
    exists &= _is_significant(image, memory.direction, memory.point)
    alpha = tf.where(exists, memory.rho / tf.where(exists, product, 1.0), 0.0)
    point = memory.point + alpha * memory.direction
    residual = memory.residual - alpha * image
    memory = memory._replace(point=point, residual=residual, image=image, alpha=alpha)
    return point + residual, memory


def _second_half(
    memory: _BiorthogonalState, image: tf.Tensor
) -> tuple[tf.Tensor, _BiorthogonalState]:
    exists = _is_significant(image, memory.residual, memory.point)
    size = tf.where(exists, squared_norm(image), 1.0)
    omega = tf.where(exists, _dot(image, memory.residual) / size, 0.0)
    point = memory.point + omega * memory.residual
    residual = memory.residual - omega * image
    rho = _dot(memory.shadow, residual)
    scale = memory.rho * omega
    has_ended = tf.equal(scale * memory.alpha, 0.0)
    has_ended |= tf.abs(rho) <= _epsilon(rho) * _lengths(memory.shadow, residual)
    beta = rho * memory.alpha / tf.where(has_ended, tf.ones_like(scale), scale)
    direction = residual + beta * (memory.direction - omega * memory.image)
    direction = tf.where(has_ended, residual, direction)
    memory = memory._replace(
        point=point,
        residual=residual,
        shadow=tf.where(has_ended, residual, memory.shadow),
        direction=direction,
        rho=tf.where(has_ended, squared_norm(residual), rho),
    )
    return point + direction, memory


def _is_significant(
    image: tf.Tensor, direction: tf.Tensor, point: tf.Tensor
) -> tf.Tensor:
    """Returns whether a product exceeds the rounding errors of its evaluation, which
    was at `point + direction`."""
    size = squared_norm(direction) + squared_norm(point)
    return squared_norm(image) > (4.0 * _epsilon(image)) ** 2 * size


def _dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(a * b, axis=1, keepdims=True)  # (B, 1)


def _lengths(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(squared_norm(a) * squared_norm(b))  # (B, 1)


def _norm(matrix: tf.Tensor) -> tf.Tensor:
    # Squares of tiny cotangents underflow.
    largest = tf.reduce_max(tf.abs(matrix), axis=1, keepdims=True)
    scale = tf.where(largest > 0, largest, 1.0)
    return scale * tf.sqrt(squared_norm(matrix / scale))  # (B, 1)


def _epsilon(tensor: tf.Tensor) -> float:
    return float(np.finfo(tensor.dtype.as_numpy_dtype).eps)
