"""The gradient of an equilibrium by the implicit function theorem."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras import solvers
from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.linearization import Linearization, linearize
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.serialization import Config
from deq_keras.core.splitting import Splitting
from deq_keras.core.structure import Nest, at_least_float32, interpolate
from deq_keras.gradients.adjoint_report import AdjointReport, adjoint_report
from deq_keras.gradients.forward import (
    guard_second_order,
    linearize_equilibrium,
    solve_without_gradient,
    with_gradient_of,
)
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest


@keras.saving.register_keras_serializable(package="deq_keras")
class ImplicitGradient(EquilibriumGradient):
    """Differentiates z* = f(z*, u) by the implicit function theorem.

    The backward pass solves the adjoint equation for y, given the cotangent c of z*,

        y = (df/dz)^T y + c        with df/dz at z*,

    and back-propagates y through one evaluation of f. In compiled steps, memory holds
    only what the solver stores, regardless of the number of forward evaluations. In
    eager mode, TensorFlow's tape also records the loops.

    The gradient assumes an exact equilibrium. If the forward solve stopped far from it,
    df/dz is evaluated at the wrong point and the gradient is noise. The layer logs the
    residual and the estimated gradient error. If they are large, prefer
    `TruncatedGradient` or `NeumannGradient`.

    Args:
        solver: Adjoint solver: a name, a config dict or a `FixedPointSolver`. `GMRES`
            needs the fewest products with J. `FixedPointIteration(max_iter=K,
            tol=None)` computes a Neumann series of K terms. Defaults to `None`, the
            solver of the forward solve, with its whole budget.

    Example:

    >>> gradient = deq_keras.gradients.ImplicitGradient("broyden")
    >>> u = tf.constant([[1.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(u)
    ...     equilibrium = gradient.solve(
    ...         deq_keras.solvers.FixedPointProblem(lambda z, u: 0.5 * z + u, u),
    ...         deq_keras.solvers.SolveRequest(tf.zeros((1, 1))),
    ...         deq_keras.solvers.Anderson(tol=1e-6),
    ...     )
    >>> round(float(tape.gradient(equilibrium.value, u)[0, 0]), 3)
    2.0

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models", theorem 1.
    """

    has_adjoint = True
    assumes_convergence = True

    def __init__(self, solver: str | Config | FixedPointSolver | None = None) -> None:
        self.solver = None if solver is None else solvers.get(solver)
        # Messages must name the gradient that the user chose.
        self.described = type(self).__name__

    def solve(
        self,
        problem: FixedPointProblem,
        request: SolveRequest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[AdjointReport], None] | None = None,
    ) -> Equilibrium:
        solution = solve_without_gradient(problem, request, solver)
        linearization, healthy = linearize_equilibrium(problem, solution)
        adjoint = _Adjoint(
            linearization,
            healthy,
            self.solver or solver,
            record_adjoint,
            self.described,
        )
        carrier, linearization = adjoint.attached()
        value = with_gradient_of(solution, carrier)
        return Equilibrium(value, solution, linearization)

    def get_config(self) -> Config:
        return {"solver": self.solver and solvers.serialize(self.solver)}


class _AdjointFunction:
    """The function (y, c) -> J^T y + c, with the Jacobian J of f at z*.

    Attributes:
        linearization: The `Linearization` of f at z*.
        problem: The `FixedPointProblem` of f.
    """

    def __init__(
        self, linearization: Linearization, problem: FixedPointProblem
    ) -> None:
        self.linearization = linearization
        self.problem = problem

    def __call__(self, state: Nest, cotangent: Nest) -> Nest:
        vector = tree.map_structure(
            lambda leaf, output: tf.cast(leaf, output.dtype),
            state,
            self.linearization.value,
        )
        return tree.map_structure(
            lambda product, constant: tf.cast(product, constant.dtype) + constant,
            self.linearization.vjp(vector),
            cotangent,
        )

    def constant_term(self, cotangent: Nest) -> Nest:
        """Returns the value at y = 0, which is c. It marks the function as affine."""
        return cotangent

    def splitting(self, cotangent: Nest) -> Splitting | None:
        """Returns the `Splitting` of the linear equation, if f has one."""
        splitting = self.problem.splitting
        if splitting is None:
            return None
        point = tree.map_structure(at_least_float32, self.linearization.point)
        return AdjointSplitting(splitting, point, cotangent)


class _Adjoint(NamedTuple):
    """The adjoint equation y = (df/dz)^T y + c of a linearization.

    Attributes:
        linearization: The `Linearization` of f at z*.
        problem: The `FixedPointProblem` of f.
        solver: The `FixedPointSolver` of the adjoint equation.
        record: Function that is called with the `AdjointReport`, or `None`.
        name: String. Name of the gradient in error messages.
    """

    linearization: Linearization
    problem: FixedPointProblem
    solver: FixedPointSolver
    record: Callable[[AdjointReport], None] | None
    name: str

    def attached(self) -> tuple[Nest, Linearization]:
        """Returns the value, with the adjoint solution in place of its cotangent.

        Also returns a linearization. The adjoint solve waits for the products of this
        linearization: the gradient of a penalty is computed first, so that the two do
        not occupy memory at the same time.
        """
        reason = "it solves an adjoint equation, and that solve has no derivative"
        guarded = guard_second_order(self.linearization.value, self.name, reason)
        zero, *leaves = custom_gradient(self._forward)(
            tf.zeros(()), *tree.flatten(guarded)
        )
        value = tree.pack_sequence_as(self.linearization.value, leaves)
        vjp = functools.partial(self._awaited_vjp, zero)
        return value, self.linearization._replace(vjp=vjp)

    def _awaited_vjp(self, zero: tf.Tensor, vector: Nest) -> Nest:
        # The gradient of `zero` is the last tensor that a penalty's gradient computes.
        return self.linearization.vjp(
            tree.map_structure(lambda leaf: leaf + tf.cast(zero, leaf.dtype), vector)
        )

    def _forward(
        self, zero: tf.Tensor, *value: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, ...], Callable]:
        outputs = (tf.identity(zero), *map(tf.identity, value))
        return outputs, functools.partial(self._backward, value)

    def _backward(
        self,
        value: tuple[tf.Tensor, ...],
        end_of_penalty: tf.Tensor,
        *cotangent: tf.Tensor,
    ) -> tuple[tf.Tensor | None, ...]:
        with tf.control_dependencies([end_of_penalty]):
            # Accumulates in the solver's precision, regardless of the compute dtype.
            leaves = [at_least_float32(tf.identity(leaf)) for leaf in cotangent]
        constant = tree.pack_sequence_as(self.linearization.value, leaves)
        function = _AdjointFunction(self.linearization, self.problem)
        solution = self._solve(constant, function)
        if self.record is not None:
            self.record(adjoint_report(self.linearization, constant, solution))
        return None, *self._leaves(solution)

    def _leaves(self, solution: Solution) -> list[tf.Tensor]:
        """Returns the leaves of a solution in the dtypes of the cell's output."""
        return [
            nonfinite.with_overflow(solution, tf.cast(leaf, output.dtype))
            for leaf, output in zip(
                tree.flatten(solution.value),
                tree.flatten(self.linearization.value),
                strict=True,
            )
        ]

    def _solve(self, constant: Nest, function: _AdjointFunction) -> Solution:
        problem = FixedPointProblem(function, constant)
        return self.solver.solve(problem, SolveRequest(constant, records_trace=False))


class AdjointSplitting(Splitting):
    """The parts of y = J^T y + c with the Jacobian J = D W of f(z) = prox(W z + b).

    With v = D y the equation is v = D (W^T v + c), which has the same form: D, the
    derivative of prox at W z* + b, is the proximal map of v^T (D^-1 - I) v / 2. The
    proximal map of alpha times that function is D / (D + alpha (1 - D)), or 0 if D = 0.

    Args:
        splitting: The `Splitting` of f.
        point: Nest z*.
        cotangent: Nest c, like it.
    """

    def __init__(self, splitting: Splitting, point: Nest, cotangent: Nest) -> None:
        slope, proximal = _linearized(splitting, point)
        super().__init__(
            linear=_transposed(splitting.linear, point),
            bias=cotangent,
            resolvent=lambda alpha: _transposed(splitting.resolvent(alpha), point),
            proximal=proximal,
            derivative=lambda _: slope,
        )

    def to_auxiliary(self, state: Nest, alpha: float) -> Nest:
        # The state y takes the place of W z + b.
        return interpolate(self.proximal(state, 1.0), state, alpha)

    def from_auxiliary(self, iterate: Nest, alpha: float) -> Nest:
        return interpolate(self.proximal(iterate, alpha), iterate, 1.0 / alpha)


def _linearized(
    splitting: Splitting, point: Nest
) -> tuple[Nest, Callable[[Nest, float], Nest]]:
    """Returns the diagonal of D, and the proximal map of v^T (D^-1 - I) v / 2."""
    slope = splitting.derivative(splitting.affine(point))

    def proximal(state: Nest, alpha: float) -> Nest:
        return tree.map_structure(
            lambda leaf, d: leaf * d / (d + alpha * (1.0 - d)), state, slope
        )

    return slope, proximal


def _transposed(linear: Callable[[Nest], Nest], point: Nest) -> Callable[[Nest], Nest]:
    """Returns the transpose of a linear function of nests like `point`."""
    return linearize(linear, point).vjp
