"""One taped evaluation of f, and any number of products with its Jacobian."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree


class Linearization(NamedTuple):
    """A function at a point, with its vector-Jacobian products.

    Attributes:
        point: nest of tensors. Where the function was evaluated; a constant.
        value: nest like `point`. The function there. Gradients of parameters and of
            everything else the function uses pass through it.
        vjp: function from a nest v like `value` to the nest v^T df/dz like `point`. It
            costs one backward pass and no forward pass, may be called in a
            `tf.while_loop`, and is differentiable itself.
    """

    point: Any
    value: Any
    vjp: Callable


def linearize(fn, point):
    """Evaluates `fn` at `point` and keeps what its vector-Jacobian products need.

    Args:
        fn: function from a nest of floating-point tensors to a nest like it.
        point: nest of tensors. No gradient flows into it.

    Returns:
        A `Linearization`.
    """
    point = tree.map_structure(tf.stop_gradient, point)
    leaves = tree.flatten(point)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(leaves)
        value = fn(point)

    def vjp(vector):
        products = tape.gradient(
            tree.flatten(value),
            leaves,
            output_gradients=tree.flatten(vector),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return tree.pack_sequence_as(point, products)

    return Linearization(point, value, vjp)
