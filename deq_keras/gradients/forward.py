"""The forward half that the gradients of an equilibrium share."""

import functools
from collections.abc import Callable

import tensorflow as tf
from keras import tree

from deq_keras import faults
from deq_keras.custom_gradient import custom_gradient
from deq_keras.linearization import Linearization, linearize
from deq_keras.solvers import FixedPointSolver, Solution, SolveRequest
from deq_keras.structure import Nest


def solve_without_gradient(
    fn: Callable[[Nest, Nest], Nest],
    request: SolveRequest,
    injection: Nest,
    solver: FixedPointSolver,
) -> Solution:
    """Solves z = fn(z, injection); nothing in the result carries a gradient."""
    start, constant = tree.map_structure(
        lambda leaf: tf.stop_gradient(leaf), (request.initial_state, injection)
    )
    solution = solver.solve_request(
        faults.SampleFunction.of(fn).of_states(constant),
        request._replace(initial_state=start),
    )
    return tree.map_structure(tf.stop_gradient, solution)


def linearize_equilibrium(
    fn: Callable[[Nest, Nest], Nest], solution: Solution, injection: Nest
) -> tuple[Linearization, Nest]:
    """Linearises fn at the solution, out of reach of the samples that failed.

    A sample of which no evaluation was finite would turn the parameters' gradient into
    NaN, even with a zero cotangent, because 0 * NaN is NaN. Such samples are
    linearised at the numbers of another one; see `with_gradient_of`.

    Args:
        fn: Function `(state, injection) -> state`.
        solution: A `Solution` without gradient.
        injection: Nest of tensors.

    Returns:
        The `Linearization`, and the injection it was taken with.
    """
    point, injection = faults.SampleFunction.of(fn).without_failed(
        faults.has_no_evaluation(solution), solution.point, injection
    )
    return linearize(lambda state: fn(state, injection), point), injection


def with_gradient_of(solution: Solution, carrier: Nest) -> Nest:
    """Returns the value of a solution, a constant, with the gradient of `carrier`.

    The layer's output is then f(z*) as the solver knows it, in training and in
    inference alike, and the evaluations that only carry the gradient are pruned from
    a graph in which nobody asks for it. A sample of which no evaluation was finite has
    no gradient.

    Args:
        solution: A `Solution` without gradient.
        carrier: Nest like its value.
    """
    value, size = solution.value, len(tree.flatten(solution.value))
    backward = functools.partial(_to_carrier, size, faults.has_no_evaluation(solution))

    @custom_gradient
    def attach(*leaves: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        return tuple(tf.identity(leaf) for leaf in leaves[:size]), backward

    leaves = attach(*tree.flatten(value), *tree.flatten(carrier))
    return tree.pack_sequence_as(value, list(leaves))


def _to_carrier(
    size: int, failed: tf.Tensor, *cotangent: tf.Tensor
) -> tuple[tf.Tensor | None, ...]:
    # Who gathers samples gives slices of a cotangent.
    leaves = [tf.convert_to_tensor(leaf) for leaf in cotangent]
    return (None,) * size + tuple(faults.without_gradient(failed, leaves))
