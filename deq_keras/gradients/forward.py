"""The parts that the gradient strategies share."""

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
    """Linearizes f at the solution; the gradient passes through a gate.

    Args:
        problem: A `FixedPointProblem`.
        solution: A `Solution` without gradient.

    Returns:
        The `Linearization`, and the problem behind the gate. They have no gradient if a
        sample has no finite evaluation.
    """
    gate = nonfinite.GradientGate()
    gate.close_if(nonfinite.has_no_evaluation(solution), problem.is_usable)
    problem = problem.gated(gate)
    return problem.linearize(solution.point), problem


def replace_gradient(solution: Solution, carrier: Nest) -> Nest:
    """Returns the value of a solution, a constant, with the gradient of `carrier`.

    In training and at inference, the layer's output is thus the f(z*) that the solver
    computed. A graph without gradients prunes evaluations that only carry gradients.

    Args:
        solution: A `Solution` without gradient.
        carrier: Nest like its value.
    """
    value = tree.flatten(solution.value)
    size = len(value)

    def forward(*leaves: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        # `tf.gather` downstream yields `IndexedSlices`; densify them.
        return [*map(tf.identity, leaves[:size])], lambda *cotangent: [
            *[None] * size,
            *map(tf.convert_to_tensor, cotangent),
        ]

    leaves = custom_gradient(forward)(*value, *tree.flatten(carrier))
    return tree.pack_sequence_as(solution.value, leaves)


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
