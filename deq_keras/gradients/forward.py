"""The forward pass that all gradient strategies share."""

import functools
import warnings
from collections.abc import Callable

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient, stop_gradient
from deq_keras.core.linearization import Linearization
from deq_keras.core.problem import FixedPointProblem
from deq_keras.core.structure import Nest
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest


def solve_without_gradient(
    problem: FixedPointProblem, request: SolveRequest, solver: FixedPointSolver
) -> Solution:
    """Solves the problem; the solution carries no gradient.

    A SavedModel lacks the Python functions of custom gradients. Its gradient passes
    through the value and the solver's loop instead.
    """
    start = tree.map_structure(tf.stop_gradient, request.initial_state)
    injection = tree.map_structure(stop_gradient, problem.injection)
    constant = problem.bound(injection)
    solution = solver.solve(constant, request._replace(initial_state=start))
    value = tree.map_structure(stop_gradient, solution.value)
    return tree.map_structure(tf.stop_gradient, solution)._replace(value=value)


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

    leaves = custom_gradient(attach)(*tree.flatten(value), *tree.flatten(carrier))
    return tree.pack_sequence_as(value, list(leaves))


def _to_carrier(
    size: int, failed: tf.Tensor, *cotangent: tf.Tensor
) -> tuple[tf.Tensor | None, ...]:
    # `tf.gather` downstream yields `IndexedSlices`; densify them.
    leaves = [tf.convert_to_tensor(leaf) for leaf in cotangent]
    return (None,) * size + tuple(nonfinite.without_gradient(failed, leaves))


def guard_second_order(
    carrier: Nest, name: str, reason: str, is_refused: bool = True
) -> Nest:
    """Returns `carrier`, with a gradient that raises or warns if it is differentiated.

    Use it for a gradient that holds z* constant: its second derivatives are wrong.

    Args:
        carrier: Nest of tensors.
        name: String. Name of the gradient that the user chose, for the message.
        reason: String. Why the second derivative is wrong.
        is_refused: Boolean. Whether to raise an error. Otherwise, warns.
    """
    kind = "no" if is_refused else "only approximate"
    message = (
        f"{name} has {kind} second derivatives: {reason}. For second derivatives, use "
        "UnrolledGradient or TruncatedGradient(num_free_steps=0), and call the layer "
        "with `training=True`."
    )

    def second_order(gradient: tf.Tensor) -> list[tf.Tensor | None]:
        if is_refused:
            raise NotImplementedError(message)
        warnings.warn(message, stacklevel=2)
        return [gradient, None]

    def guard(leaf: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        # The first derivative also takes `leaf`, which connects it to everything that
        # the equilibrium depends on. Otherwise a second derivative would be zero.
        first_order = custom_gradient(
            lambda cotangent, source: (tf.identity(cotangent), second_order)
        )
        return tf.identity(leaf), lambda cotangent: first_order(cotangent, leaf)

    return tree.map_structure(custom_gradient(guard), carrier)
