"""The parts that the gradient strategies share."""

from collections.abc import Callable

import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.custom_gradient import custom_gradient, stop_gradient
from deq_keras.core.internals import may_differentiate_twice
from deq_keras.core.problem import FixedPointFunction, FixedPointProblem
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
    sources = problem.injection, problem.weights
    if may_differentiate_twice(nonfinite.differentiable(sources)):
        # TensorFlow would differentiate the loop here, which takes minutes.
        injection, weights = tree.map_structure(tf.stop_gradient, sources)
    else:
        injection = tree.map_structure(stop_gradient, problem.injection)
        weights = None  # The loop reads the variables themselves.
    constant = problem.bound(injection, weights=weights)
    solution = solver.solve(constant, request._replace(initial_state=start))
    value = tree.map_structure(stop_gradient, solution.value)
    return tree.map_structure(tf.stop_gradient, solution)._replace(value=value)


class LinearFunction(FixedPointFunction):
    """The function (y, c) -> A y + c, in the precision of c.

    Args:
        product: Function from a nest y to the nest A y.
        like: Nest like y, which has the dtypes that `product` takes.
    """

    def __init__(self, product: Callable[[Nest], Nest], like: Nest) -> None:
        self._product = product
        self._like = like

    def __call__(self, state: Nest, constant: Nest) -> Nest:
        vector = tree.map_structure(
            lambda leaf, like: tf.cast(leaf, like.dtype), state, self._like
        )
        return tree.map_structure(
            lambda product, term: tf.cast(product, term.dtype) + term,
            self._product(vector),
            constant,
        )

    def constant_term(self, constant: Nest) -> Nest:
        """Returns the value at y = 0, which is c. It marks the function as affine."""
        return constant


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
