"""The forward pass that the gradients of an equilibrium share."""

import functools
from collections.abc import Callable, Iterable

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


def first_order_only(
    leaves: list[tf.Tensor], sources: Iterable[tf.Tensor], name: str, reason: str
) -> list[tf.Tensor]:
    """Returns tensors that raise an error if they are differentiated.

    Args:
        leaves: List of tensors.
        sources: Tensors that connect them to everything that they depend on.
        name: String. The gradient strategy.
        reason: String. Clause that says why only the first derivative exists.
    """
    size = len(leaves)

    def refuse(*_: tf.Tensor) -> None:
        raise NotImplementedError(
            f"{name} has no second derivatives: {reason}. For second derivatives, use "
            "UnrolledGradient or TruncatedGradient, and call the layer with "
            "`training=True`."
        )

    @custom_gradient
    def attach(*tensors: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        return tuple(tf.identity(tensor) for tensor in tensors[:size]), refuse

    return list(attach(*leaves, *sources))


def _to_carrier(
    size: int, failed: tf.Tensor, *cotangent: tf.Tensor
) -> tuple[tf.Tensor | None, ...]:
    # `tf.gather` downstream yields `IndexedSlices`; densify them.
    leaves = [tf.convert_to_tensor(leaf) for leaf in cotangent]
    return (None,) * size + tuple(nonfinite.without_gradient(failed, leaves))
