"""The forward half that the gradients of an equilibrium share."""

import tensorflow as tf
from keras import tree

from deq_keras.faults import SampleFunction, any_rows, has_no_evaluation
from deq_keras.linearization import linearize


def solve_without_gradient(fn, initial_state, injection, solver, seed=None):
    """Solves z = fn(z, injection); nothing in the result carries a gradient."""
    start, constant = tree.map_structure(
        lambda leaf: tf.stop_gradient(leaf), (initial_state, injection)
    )
    solution = solver.solve(lambda state: fn(state, constant), start, seed=seed)
    return tree.map_structure(tf.stop_gradient, solution)


def linearize_equilibrium(fn, solution, injection):
    """Linearises fn at the solution, out of reach of the samples that failed.

    A sample of which no evaluation was finite would turn the parameters' gradient into
    NaN, even with a zero cotangent, because 0 * NaN is NaN. Such samples are
    linearised at the numbers of another one; see `with_gradient_of`.

    Args:
        fn: function `(state, injection) -> state`.
        solution: a `Solution` without gradient.
        injection: nest of tensors.

    Returns:
        The `Linearization`, and the injection it was taken with.
    """
    point, injection = SampleFunction.of(fn).without_failed(
        has_no_evaluation(solution), solution.point, injection
    )
    return linearize(lambda state: fn(state, injection), point), injection


def with_gradient_of(solution, carrier):
    """Returns the value of a solution, a constant, with the gradient of `carrier`.

    The layer's output is then f(z*) as the solver knows it, in training and in
    inference alike, and the evaluations that only carry the gradient are pruned from
    a graph in which nobody asks for it. A sample of which no evaluation was finite has
    no gradient.

    Args:
        solution: a `Solution` without gradient.
        carrier: nest like its value.
    """
    value = solution.value
    size = len(tree.flatten(value))
    has_failed = has_no_evaluation(solution)

    @tf.custom_gradient
    def attach(*leaves):
        def backward(*cotangent):
            # Who gathers samples gives slices of a cotangent.
            cotangent = [tf.convert_to_tensor(leaf) for leaf in cotangent]
            return (None,) * size + tuple(any_rows(has_failed, 0.0, cotangent))

        return tuple(tf.identity(leaf) for leaf in leaves[:size]), backward

    leaves = attach(*tree.flatten(value), *tree.flatten(carrier))
    return tree.pack_sequence_as(value, list(leaves))
