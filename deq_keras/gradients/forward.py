"""The forward pass that all gradient strategies share."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient, is_in_forward_mode
from deq_keras.core.linearization import Linearization
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest


def solve_without_gradient(
    problem: FixedPointProblem, request: SolveRequest, solver: FixedPointSolver
) -> Solution:
    """Solves the problem; the solution carries no gradient."""
    start, injection = tree.map_structure(
        tf.stop_gradient, (request.initial_state, problem.injection)
    )
    constant = problem.bound(injection)
    if is_in_forward_mode(problem.sources):
        constant = without_tangents(problem)
    solution = solver.solve(constant, request._replace(initial_state=start))
    return tree.map_structure(tf.stop_gradient, solution)


def without_tangents(problem: FixedPointProblem) -> FixedPointProblem:
    """Returns the problem with constants in place of its injection and weights.

    A `tf.autodiff.ForwardAccumulator` immediately differentiates every operation on a
    tensor with a tangent, even in a solver whose result is constant.
    """
    injection, weights = tree.map_structure(
        tf.stop_gradient, (problem.injection, problem.weights)
    )
    return problem.bound(injection, weights=weights)


def linearize_equilibrium(
    problem: FixedPointProblem, solution: Solution
) -> tuple[Linearization, FixedPointProblem]:
    """Linearizes f at the solution, with a healthy sample in place of failed ones.

    Args:
        problem: A `FixedPointProblem`.
        solution: A `Solution` without gradient.

    Returns:
        The `Linearization`, and the problem without failed samples.
    """
    failed = nonfinite.has_no_evaluation(solution)
    problem, point = problem.without(failed, solution.point)
    return problem.linearize(point), problem


def with_gradient_of(solution: Solution, carrier: Nest) -> Nest:
    """Returns the value of a solution, a constant, with the gradient of `carrier`.

    In training and at inference, the layer's output is thus the f(z*) that the solver
    computed. A graph without gradients prunes evaluations that only carry gradients.
    Samples without a finite evaluation have no gradient.

    Args:
        solution: A `Solution` without gradient.
        carrier: Nest like its value.
    """
    value, size = solution.value, len(tree.flatten(solution.value))
    backward = functools.partial(
        _to_carrier, size, nonfinite.has_no_evaluation(solution)
    )

    def attach(*leaves: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        return tuple(tf.identity(leaf) for leaf in leaves[:size]), backward

    tangent = functools.partial(
        _of_carrier, size, nonfinite.has_no_evaluation(solution)
    )
    leaves = custom_gradient(attach, tangent)(
        *tree.flatten(value), *tree.flatten(carrier)
    )
    return tree.pack_sequence_as(value, list(leaves))


def _of_carrier(size: int, failed: tf.Tensor, *tangents: tf.Tensor) -> list[tf.Tensor]:
    return list(nonfinite.without_gradient(failed, list(tangents[size:])))


def _to_carrier(
    size: int, failed: tf.Tensor, *cotangent: tf.Tensor
) -> tuple[tf.Tensor | None, ...]:
    # `tf.gather` downstream yields `IndexedSlices`; densify them.
    leaves = [tf.convert_to_tensor(leaf) for leaf in cotangent]
    return (None,) * size + tuple(nonfinite.without_gradient(failed, leaves))


class HigherOrder(NamedTuple):
    """A guard against second derivatives of a gradient that holds z* constant.

    Attributes:
        name: String. Name of the gradient strategy.
        reason: String. Why the second derivative is wrong.
        is_refused: Boolean. Whether to raise an error. Otherwise, warns.
    """

    name: str
    reason: str
    is_refused: bool = True

    def guard(self, carrier: Nest) -> Nest:
        """Returns `carrier`, with a gradient that raises or warns if differentiated."""

        def guarded(leaf: tf.Tensor) -> tf.Tensor:
            def rule(tangent: tf.Tensor) -> list[tf.Tensor]:
                return [self.first_order(tangent, leaf)]

            attach = custom_gradient(self._forward, rule)
            marked: tf.Tensor = attach(leaf)
            return marked

        return tree.map_structure(guarded, carrier)

    def first_order(self, derivative: tf.Tensor, *sources: tf.Tensor) -> tf.Tensor:
        """Returns a derivative that raises or warns if it is differentiated.

        Args:
            derivative: Tensor. A cotangent or a tangent.
            *sources: Tensors that depend on everything that the derivative depends on.
        """
        mark = custom_gradient(self._first_order, self._second_order)
        marked: tf.Tensor = mark(derivative, *sources)
        return marked

    def check_forward_mode(self, sources: Sequence[tf.Tensor]) -> None:
        """Raises or warns if a `tf.autodiff.ForwardAccumulator` watches the sources of
        a derivative."""
        if is_in_forward_mode(sources):
            self._second_order(None)

    def _forward(self, leaf: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        # `leaf` connects its gradient to everything that the equilibrium depends on.
        return tf.identity(leaf), lambda cotangent: self.first_order(cotangent, leaf)

    def _first_order(
        self, derivative: tf.Tensor, *sources: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        def backward(gradient: tf.Tensor) -> list[tf.Tensor | None]:
            return [*self._second_order(gradient), *[None] * len(sources)]

        return tf.identity(derivative), backward

    def _second_order(self, gradient: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
        kind = "no" if self.is_refused else "only approximate"
        message = (
            f"{self.name} has {kind} second derivatives: {self.reason}. For second "
            "derivatives, use UnrolledGradient or TruncatedGradient(num_free_steps=0), "
            "and call the layer with `training=True`. For first derivatives of a "
            "`tf.function`, create the `tf.autodiff.ForwardAccumulator` in it."
        )
        if self.is_refused:
            raise NotImplementedError(message)
        warnings.warn(message, stacklevel=2)
        return [gradient]
