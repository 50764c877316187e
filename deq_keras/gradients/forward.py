"""The forward half that the gradients of an equilibrium share."""

import tensorflow as tf
from keras import tree

from deq_keras.linearization import Linearization, linearize
from deq_keras.structure import where_rows


def solve_without_gradient(fn, initial_state, injection, solver):
    """Solves z = fn(z, injection); nothing in the result carries a gradient."""
    start, constant = tree.map_structure(
        lambda leaf: tf.stop_gradient(leaf), (initial_state, injection)
    )
    solution = solver.solve(lambda state: fn(state, constant), start)
    return tree.map_structure(tf.stop_gradient, solution)


def linearize_equilibrium(fn, solution, injection):
    """Linearises fn at the solution, out of reach of the samples that failed.

    A sample of which no evaluation was finite would turn the parameters' gradient into
    NaN, even with a zero cotangent, because 0 * NaN is NaN. Such samples are
    linearised at a zero injection, and their value is the constant they started from.

    Args:
        fn: function `(state, injection) -> state`.
        solution: a `Solution` without gradient.
        injection: nest of tensors. Those whose first axis is the batch axis are taken
            apart by samples.

    Returns:
        The `Linearization`, and the injection it was taken with.
    """
    has_failed = tf.math.is_inf(solution.residual)
    any_failed = tf.reduce_any(has_failed)
    leaves = tree.flatten(injection)
    safe = [
        _without_rows(leaf, has_failed, any_failed)
        if _is_batched(leaf, has_failed)
        else leaf
        for leaf in leaves
    ]
    injection = tree.pack_sequence_as(injection, safe)
    linearization = linearize(lambda state: fn(state, injection), solution.point)
    value = tf.cond(
        any_failed,
        lambda: where_rows(has_failed, solution.point, linearization.value),
        lambda: linearization.value,
    )
    return Linearization(linearization.point, value, linearization.vjp), injection


def with_gradient_of(value, carrier):
    """Returns `value`, a constant, with the gradient of `carrier`.

    The layer's output is then f(z*) as the solver knows it, in training and in
    inference alike, and the evaluations that only carry the gradient are pruned from
    a graph in which nobody asks for it.

    Args:
        value: nest of tensors without gradient.
        carrier: nest like `value`.
    """
    size = len(tree.flatten(value))

    @tf.custom_gradient
    def attach(*leaves):
        def backward(*cotangent):
            return (None,) * size + cotangent

        return tuple(tf.identity(leaf) for leaf in leaves[:size]), backward

    leaves = attach(*tree.flatten(value), *tree.flatten(carrier))
    return tree.pack_sequence_as(value, list(leaves))


def _without_rows(leaf, has_failed, any_failed):
    return tf.cond(any_failed, lambda: where_rows(has_failed, 0.0, leaf), lambda: leaf)


def _is_batched(leaf, rows):
    """Whether the first axis of `leaf` is the batch axis, as far as shapes tell."""
    if leaf.shape.rank in (None, 0) or not leaf.dtype.is_floating:
        return False
    return leaf.shape[0] == rows.shape[0]
