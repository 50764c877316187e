"""A function with the weights that it reads, as tensors."""

import functools
from collections.abc import Callable

import keras
import tensorflow as tf
from keras import tree

from deq_keras.custom_gradient import custom_gradient
from deq_keras.structure import Nest


class BoundFunction:
    """A function `(state, injection) -> state` that reads given tensors as weights.

    Args:
        fn: The function. Its attribute `variables` lists the Keras variables it reads.
        weights: List of tensors that it reads instead, one for each variable.
    """

    def __init__(
        self,
        fn: Callable[[Nest, Nest], Nest],
        weights: list[tf.Tensor],
    ) -> None:
        self.fn = fn
        self.weights = weights

    def __call__(self, state: Nest, injection: Nest) -> Nest:
        variables = getattr(self.fn, "variables", ())
        pairs = list(zip(variables, self.weights, strict=True))
        with keras.StatelessScope(pairs):
            return self.fn(state, injection)

    def rematerialized(self, state: Nest, injection: Nest) -> Nest:
        """Calls the function; keeps the state for the gradient, and nothing else.

        The gradient evaluates it again. As with `keras.remat`, tensors that the
        function captures get no gradient; its weights do, which `keras.remat` leaves
        out where they are captured.
        """
        call = _RematerializedCall(self, state, injection)
        leaves = custom_gradient(call.forward)(
            *tree.flatten(state), *_floating(injection), *self.weights
        )
        return tree.pack_sequence_as(state, list(leaves))


class _RematerializedCall:
    """One call, in the form that `custom_gradient` takes.

    Injection and weights are read where they were made, and not as arguments: in a loop
    the latter are new tensors, which would be stored in each iteration.
    """

    def __init__(self, fn: BoundFunction, state: Nest, injection: Nest) -> None:
        self.fn = fn
        self.state = state
        self.injection = injection

    def forward(self, *arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        leaves = arguments[: len(tree.flatten(self.state))]
        state = tree.pack_sequence_as(self.state, list(leaves))
        value = tree.flatten(self.fn(state, self.injection))
        return tuple(value), functools.partial(self._backward, leaves)

    def _backward(
        self, leaves: tuple[tf.Tensor, ...], *cotangent: tf.Tensor
    ) -> list[tf.Tensor]:
        # Not before its turn: evaluations that wait for theirs would fill the memory.
        with tf.control_dependencies(cotangent):
            leaves = tuple(tf.identity(leaf) for leaf in leaves)
        state = tree.pack_sequence_as(self.state, list(leaves))
        injection = _floating(self.injection)
        sources = [*leaves, *injection, *self.fn.weights]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            value = self.fn(state, self.injection)
        return tape.gradient(tree.flatten(value), sources, list(cotangent), "zero")


def _floating(nest: Nest) -> list[tf.Tensor]:
    leaves = map(tf.convert_to_tensor, tree.flatten(nest))
    return [leaf for leaf in leaves if leaf.dtype.is_floating]
