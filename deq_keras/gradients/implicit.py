"""The gradient of an equilibrium by the implicit function theorem."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import tree

from deq_keras import faults, solvers
from deq_keras.custom_gradient import custom_gradient
from deq_keras.gradients.adjoint_splitting import AdjointSplitting
from deq_keras.gradients.forward import (
    linearize_equilibrium,
    solve_without_gradient,
    with_gradient_of,
)
from deq_keras.gradients.gradient import Equilibrium, EquilibriumGradient
from deq_keras.linearization import Linearization
from deq_keras.serialization import Config
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest
from deq_keras.splitting import SplitFunction, Splitting
from deq_keras.structure import Nest, in_solver_dtype


@keras.saving.register_keras_serializable(package="deq_keras")
class ImplicitGradient(EquilibriumGradient):
    """Differentiates z* = f(z*, u) by the implicit function theorem.

    The backward pass solves the adjoint equation for y, given the cotangent c of z*,

        y = (df/dz)^T y + c        with df/dz at z*,

    and back-propagates y through one evaluation of f. In compiled steps memory grows by
    what the solver stores, not with the number of forward evaluations; in eager mode
    TensorFlow's tape records the loops as well.

    The gradient is that of the exact equilibrium. Where the forward solve stopped far
    from it, df/dz is taken at the wrong point and the result is noise; watch the
    residual, and prefer `PhantomGradient` or an adjoint of few terms while it is
    large.

    Args:
        solver: Adjoint solver: a name, a config dict or a `FixedPointSolver`.
            `FixedPointIteration(max_iter=K, tol=None)` makes the gradient the Neumann
            series of K terms. `None`: the solver of the forward solve, with its whole
            budget. Defaults to `None`.

    Example:

    >>> gradient = deq_keras.gradients.ImplicitGradient("broyden")
    >>> u = tf.constant([[1.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(u)
    ...     equilibrium = gradient.solve(
    ...         lambda z, u: 0.5 * z + u,
    ...         deq_keras.solvers.SolveRequest(tf.zeros((1, 1))),
    ...         u,
    ...         deq_keras.solvers.Anderson(tol=1e-6),
    ...     )
    >>> round(float(tape.gradient(equilibrium.value, u)[0, 0]), 3)
    2.0

    Reference:

    - Bai et al. (2019), "Deep Equilibrium Models", theorem 1.
    """

    has_adjoint = True
    needs_equilibrium = True

    def __init__(self, solver: str | Config | FixedPointSolver | None = None) -> None:
        self.solver = None if solver is None else solvers.get(solver)
        # Messages must name the gradient that the user chose.
        self.described = type(self).__name__

    def solve(
        self,
        fn: Callable[[Nest, Nest], Nest],
        request: SolveRequest,
        injection: Nest,
        solver: FixedPointSolver,
        record_adjoint: Callable[[Solution], None] | None = None,
    ) -> Equilibrium:
        solution = solve_without_gradient(fn, request, injection, solver)
        linearization, injection = linearize_equilibrium(fn, solution, injection)
        split = functools.partial(faults.SampleFunction.of(fn).splitting, injection)
        adjoint = _Adjoint(
            linearization, split, self.solver or solver, record_adjoint, self.described
        )
        carrier, linearization = adjoint.attached()
        value = with_gradient_of(solution, carrier)
        return Equilibrium(value, solution, linearization)

    def get_config(self) -> Config:
        return {"solver": self.solver and solvers.serialize(self.solver)}


class _Adjoint(NamedTuple):
    """The adjoint equation y = (df/dz)^T y + c of a linearization.

    Attributes:
        linearization: The `Linearization` of f at z*.
        split: Function that returns the `Splitting` of f, or `None`.
        solver: The `FixedPointSolver` of the adjoint equation.
        record: Function that is called with the `Solution`, or `None`.
        name: String. The gradient, in messages.
    """

    linearization: Linearization
    split: Callable[[], Splitting | None]
    solver: FixedPointSolver
    record: Callable[[Solution], None] | None
    name: str

    def attached(self) -> tuple[Nest, Linearization]:
        """Passes the value through; replaces its cotangent by the adjoint solution.

        Also returns the linearization with a vjp that the adjoint waits for: it is not
        solved before its products, those of a penalty, have been differentiated. Both
        at once would need the memory of both at once.
        """
        zero, *leaves = custom_gradient(self._forward)(
            tf.zeros(()), *tree.flatten(self.linearization.value)
        )
        value = tree.pack_sequence_as(self.linearization.value, leaves)
        vjp = functools.partial(self._awaited_vjp, zero)
        return value, self.linearization._replace(vjp=vjp)

    def _awaited_vjp(self, zero: tf.Tensor, vector: Nest) -> Nest:
        # The gradient of `zero` is the last tensor that a penalty's gradient forms.
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
            leaves = [tf.identity(leaf) for leaf in cotangent]
        solution = self._solve(tree.pack_sequence_as(self.linearization.value, leaves))
        if self.record is not None:
            self.record(solution)
        adjoint = [
            faults.with_overflow(solution, tf.cast(leaf, output.dtype))
            for leaf, output in zip(tree.flatten(solution.value), value, strict=True)
        ]
        first_order_only = custom_gradient(self._first_order_only)
        return None, *map(first_order_only, adjoint, value)

    def _solve(self, cotangent: Nest) -> Solution:
        # The sum is formed in the solver's precision, whatever the compute dtype is.
        cotangent = tree.map_structure(in_solver_dtype, cotangent)
        fn = functools.partial(self._right_hand_side, cotangent)
        splitting = self.split()
        if splitting is not None:
            point = tree.map_structure(in_solver_dtype, self.linearization.point)
            parts = AdjointSplitting(splitting, point, cotangent)
            return self.solver.solve(SplitFunction(fn, parts), cotangent)
        return self.solver.solve(fn, cotangent)

    def _right_hand_side(self, cotangent: Nest, state: Nest) -> Nest:
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

    def _first_order_only(
        self, adjoint: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        """Returns `adjoint`; raises where it is differentiated. `value` connects it to
        all that the equilibrium depends on."""
        del value
        return tf.identity(adjoint), self._refuse_second_order

    def _refuse_second_order(self, *_: tf.Tensor) -> None:
        raise NotImplementedError(
            f"{self.name} has no second derivatives: it solves an adjoint equation, "
            "and that solve has no derivative. For second derivatives, use "
            "UnrolledGradient or TruncatedGradient, and call the layer with "
            "`training=True`."
        )
