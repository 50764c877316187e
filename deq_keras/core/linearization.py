"""One taped evaluation of f, and any number of products with its Jacobian."""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.core.internals import differentiate
from deq_keras.core.structure import Nest, StateStructure, zero_padding


class Linearization(NamedTuple):
    """A function at a point, with the products of its Jacobian.

    Attributes:
        point: Nest of tensors. The point of the evaluation, a constant.
        value: Nest like `point`. The value of the function. It carries the gradients of
            parameters and of everything else that the function uses.
        vjp: Function from a nest v like `value` to the nest v^T df/dz like `point`. It
            costs one backward pass and no forward pass, may be called in a
            `tf.while_loop`, and is differentiable itself. At padding, its entries are
            arbitrary.
        mask: Boolean tensor, false at positions that are padding, or `None`. See
            `FixedPointProblem`.
    """

    point: Nest
    value: Nest
    vjp: Callable[[Nest], Nest]
    mask: tf.Tensor | None = None

    def jvp(self, vector: Nest) -> Nest:
        """Returns the Jacobian-vector product df/dz u of a nest u like `point`.

        The product v^T df/dz is linear in v, and its derivative for v, times u, is
        df/dz u. It costs at most two backward passes, may be called in a
        `tf.while_loop`, and needs no derivative rules in forward mode.

        Args:
            vector: Nest of tensors like `point`.
        """
        dual = tree.map_structure(tf.zeros_like, self.value)
        leaves = tree.flatten(dual)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            products = tree.flatten(self.vjp(dual))
        try:
            images = tape.gradient(products, leaves, tree.flatten(vector), "zero")
        except LookupError as error:
            raise ValueError(
                "A product with df/dz differentiates f twice, and TensorFlow has no "
                "second derivative of one of its operations. Write the operation, such "
                "as an activation or a pooling, with elementary ones. "
                f"Received: {error}"
            ) from error
        return tree.pack_sequence_as(self.value, images)


def linearize(fn: Callable[[Nest], Nest], point: Nest) -> Linearization:
    """Evaluates `fn` at `point`, and prepares its vector-Jacobian products.

    Args:
        fn: Function from a nest of floating-point tensors to a nest like it.
        point: Nest of tensors. No gradient flows into it.

    Returns:
        A `Linearization`.
    """
    point = tree.map_structure(tf.stop_gradient, point)
    leaves = tree.flatten(point)
    zero = tf.UnconnectedGradients.ZERO
    # TensorFlow makes a branch or a loop in `fn` differentiable more than once only if
    # a persistent tape exists. Otherwise, differentiating the value after a product
    # fails, and the gradient of a product lacks the variables that a branch reads.
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(leaves)
        value = fn(point)
    if tf.executing_eagerly():
        gradient = functools.partial(tape.gradient, unconnected_gradients=zero)
    else:
        # A gradient function of the graph refers to the products, and would refer to
        # the tape. The garbage collector cannot see the tape's references to the graph.
        graph = tf.compat.v1.get_default_graph()
        gradient = functools.partial(differentiate, graph=graph)

    def vjp(vector: Nest) -> Nest:
        products = gradient(tree.flatten(value), leaves, tree.flatten(vector))
        return tree.pack_sequence_as(point, products)

    return Linearization(point, value, vjp)


def matrix_vjp(
    linearization: Linearization, structure: StateStructure, matrix: tf.Tensor
) -> tf.Tensor:
    """Returns v^T df/dz for the rows v of a `(batch, features)` matrix, as a matrix.

    The product is zero at padding, where the state is a constant.

    Args:
        linearization: A `Linearization`.
        structure: The `StateStructure` of its point.
        matrix: Tensor `(batch, features)`.
    """
    vector = structure.to_state(tf.ensure_shape(matrix, structure.matrix_shape))
    product = zero_padding(linearization.vjp(vector), linearization.mask)
    return structure.to_matrix(product)


def _softsign_grad_grad(op: tf.Operation, cotangent: tf.Tensor) -> list[tf.Tensor]:
    """Differentiates v / (1 + |x|)^2, the gradient of x / (1 + |x|) for v."""
    vector, x = op.inputs
    denominator = 1 + tf.abs(x)
    slope = cotangent / tf.square(denominator)
    return [slope, -2 * vector * tf.sign(x) * slope / denominator]


# TensorFlow lacks the second derivative of this activation of Keras, which penalties on
# df/dz need. It refuses a second registration, if a later version has its own.
with contextlib.suppress(KeyError):
    tf.RegisterGradient("SoftsignGrad")(_softsign_grad_grad)
