"""The forward half that the gradients of an equilibrium share."""

import tensorflow as tf
from keras import tree

from deq_keras.linearization import Linearization, linearize
from deq_keras.structure import finite_rows, where_rows


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
    linearised at a zero injection, and their value is the constant they started from.

    Args:
        fn: function `(state, injection) -> state`.
        solution: a `Solution` without gradient.
        injection: nest of tensors. Those whose first axis is the batch axis are taken
            apart by samples, as far as their shapes tell.

    Returns:
        The `Linearization`, and the injection it was taken with.
    """
    has_failed = tf.math.is_inf(solution.residual)
    any_failed = tf.reduce_any(has_failed)
    safe = [
        _without_failed_rows(leaf, has_failed, any_failed)
        for leaf in tree.flatten(injection)
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


def _without_failed_rows(leaf, has_failed, any_failed):
    """Zeroes what failed samples injected, in a leaf whose first axis is the batch."""
    is_batched = leaf.shape.rank and leaf.shape[0] == has_failed.shape[0]
    if not is_batched or not leaf.dtype.is_floating:
        return leaf

    def select():
        # A weight may happen to have as many rows as the batch has samples. Only a
        # symbolic batch axis tells them apart; elsewhere, finite rows are spared.
        rows = has_failed
        if leaf.shape[0] is not None:
            rows = rows & ~finite_rows(leaf)
        return where_rows(rows, 0.0, leaf)

    return tf.cond(any_failed, select, lambda: leaf)
