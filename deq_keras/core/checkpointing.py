"""Loops that store only a few states for the gradient.

1. `loop` divides the iterations into segments of `interval`, each a loop of its own.
   The outer loop stores the state before each segment.
2. `rematerialize` makes a segment one operation for TensorFlow: forward it stores
   nothing but its state.
3. The gradient runs the segment again under a tape, and differentiates it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core import graphs, nonfinite
from deq_keras.core.custom_gradient import custom_gradient
from deq_keras.core.structure import Nest


def loop(
    continues: Callable[..., tf.Tensor],
    body: Callable[..., tuple],
    state: tuple,
    max_iterations: int | None,
    interval: int | None = None,
    sources: Sequence[tf.Tensor] = (),
) -> tuple:
    """Runs `graphs.while_loop`; the gradient may store the state at intervals only.

    Args:
        continues: Function of the variables that returns a Boolean scalar tensor; see
            `graphs.while_loop`.
        body: Function of the variables that returns their new values.
        state: Tuple of variables, nests of tensors and of arrays.
        max_iterations: Positive integer, or `None` for an open number.
        interval: Positive integer. The gradient stores the variables before every
            `interval`-th iteration, and recomputes the iterations in between. `None`:
            the gradient stores the activations of each iteration.
        sources: List of tensors that the body reads. With an interval, only they and
            the variables get a gradient.
    """
    if interval is None:
        return graphs.while_loop(continues, body, state, max_iterations)

    def stack(variables: tuple) -> tuple:
        """Returns the variables with a tensor for each array."""

        def convert(leaf: Any, first: Any) -> tf.Tensor:
            if not isinstance(leaf, tf.TensorArray):
                return leaf
            size = tf.get_static_value(first.size())
            return tf.ensure_shape(leaf.stack(), [size, *leaf.element_shape])

        return tree.map_structure(convert, variables, state)

    def unstack(tensors: tuple) -> tuple:
        """Returns the variables of the body."""

        def convert(leaf: Any, tensor: tf.Tensor) -> Any:
            if not isinstance(leaf, tf.TensorArray):
                return tensor
            size, shape = tf.shape(tensor)[0], leaf.element_shape
            array = tf.TensorArray(
                leaf.dtype, size, clear_after_read=False, element_shape=shape
            )
            return array.unstack(tensor)

        return tree.map_structure(convert, state, tensors)

    def segment(tensors: tuple) -> tuple:
        variables = unstack(tensors)
        if interval == 1:
            return stack(body(*variables))
        variables = tf.while_loop(
            continues,
            body,
            variables,
            maximum_iterations=interval,
            parallel_iterations=1,
        )
        return stack(variables)

    tensors = graphs.while_loop(
        continues,
        lambda *tensors: rematerialize(segment, tensors, sources),
        stack(state),
        None if max_iterations is None else -(-max_iterations // interval),
    )
    return unstack(tensors)


def rematerialize(
    function: Callable[[Nest], Nest], state: Nest, sources: Sequence[tf.Tensor]
) -> Nest:
    """Returns `function(state)`, but stores only the state for the gradient.

    The gradient calls the function a second time. Only the state and the sources get a
    gradient.

    Args:
        function: Function of the state that returns a nest of tensors.
        state: Nest of tensors.
        sources: List of tensors that the function reads.
    """
    # A tensor that is named twice would get its gradient twice.
    sources = list({id(source): source for source in sources}.values())
    call = _RecomputedCall(function, state, sources)
    leaves = custom_gradient(call.forward)(*nonfinite.floating(state), *sources)
    return _with_floating(call.value, leaves)


class _RecomputedCall:
    """One call, in the form that `custom_gradient` accepts.

    The function captures the sources. As arguments, they would be new tensors in each
    iteration of a loop, and TensorFlow would store all of them.
    """

    value: Any = None

    def __init__(
        self,
        function: Callable[[Nest], Nest],
        state: Nest,
        sources: Sequence[tf.Tensor],
    ) -> None:
        self.function = function
        self.state = state
        self.sources = sources

    def forward(self, *arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        leaves = arguments[: len(arguments) - len(self.sources)]
        graph = tf.compat.v1.get_default_graph()
        known = {id(tensor) for tensor, _ in getattr(graph, "captures", ())}
        self.value = self.function(_with_floating(self.state, leaves))
        # In the gradient of a loop, TensorFlow cannot capture eager tensors.
        constants = [
            tensor
            for tensor, _ in getattr(graph, "captures", ())
            if hasattr(tensor, "numpy")
            and tensor.dtype != tf.resource
            and id(tensor) not in known
        ]
        if constants:
            raise ValueError(
                "A gradient that recomputes evaluations (`checkpoints`) does not "
                "support tensors that a cell created before its call. Keep them as "
                "NumPy arrays or as weights that do not train, or return them from "
                "`inject`. Received: tensors of shapes "
                f"{[tuple(tensor.shape) for tensor in constants]}."
            )
        backward = functools.partial(self._backward, leaves)
        return tuple(nonfinite.floating(self.value)), backward

    def _backward(
        self, leaves: tuple[tf.Tensor, ...], *cotangent: tf.Tensor
    ) -> list[tf.Tensor]:
        # Evaluations that start before their cotangent exists would fill the memory.
        with tf.control_dependencies(cotangent):
            leaves = tuple(tf.identity(leaf) for leaf in leaves)
        watched = [*leaves, *self.sources]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            for source in self.sources:
                # In the gradient of a loop, only the first operation that reads a
                # source connects it to the tape, and `tf.stop_gradient` does not.
                tf.identity(source)
            value = self.function(_with_floating(self.state, leaves))
        outputs = nonfinite.floating(value)
        return tape.gradient(outputs, watched, list(cotangent), "zero")


def _with_floating(nest: Nest, leaves: Any) -> Nest:
    """Returns a nest with other floating-point leaves."""
    others = iter(leaves)
    return tree.map_structure(
        lambda leaf: next(others) if leaf.dtype.is_floating else leaf,
        tree.map_structure(tf.convert_to_tensor, nest),
    )
