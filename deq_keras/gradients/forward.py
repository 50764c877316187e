"""The forward pass that the gradients of an equilibrium share."""

import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient
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
    solution = solver.solve(
        problem.bound(injection), request._replace(initial_state=start)
    )
    return tree.map_structure(tf.stop_gradient, solution)


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

    The layer's output is then the f(z*) that the solver computed, in training and at
    inference alike. A graph without gradients prunes the evaluations that only carry
    them. Samples without a finite evaluation have no gradient.

    Args:
        solution: A `Solution` without gradient.
        carrier: Nest like its value.
    """
    value, size = solution.value, len(tree.flatten(solution.value))
    backward = functools.partial(
        _to_carrier, size, nonfinite.has_no_evaluation(solution)
    )

    @custom_gradient
    def attach(*leaves: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        return tuple(tf.identity(leaf) for leaf in leaves[:size]), backward

    leaves = attach(*tree.flatten(value), *tree.flatten(carrier))
    return tree.pack_sequence_as(value, list(leaves))


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
        leaves = [
            custom_gradient(self._forward)(leaf) for leaf in tree.flatten(carrier)
        ]
        return tree.pack_sequence_as(carrier, leaves)

    def _forward(self, leaf: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        # `leaf` connects its gradient to everything that the equilibrium depends on.
        first_order = custom_gradient(self._first_order)
        return tf.identity(leaf), lambda cotangent: first_order(
            tf.convert_to_tensor(cotangent), leaf
        )

    def _first_order(
        self, cotangent: tf.Tensor, leaf: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        del leaf
        return tf.identity(cotangent), self._second_order

    def _second_order(self, gradient: tf.Tensor) -> tuple[tf.Tensor, None]:
        kind = "no" if self.is_refused else "only approximate"
        message = (
            f"{self.name} has {kind} second derivatives: {self.reason}. For second "
            "derivatives, use UnrolledGradient or TruncatedGradient(num_free_steps=0), "
            "and call the layer with `training=True`."
        )
        if self.is_refused:
            raise NotImplementedError(message)
        warnings.warn(message, stacklevel=2)
        return gradient, None
