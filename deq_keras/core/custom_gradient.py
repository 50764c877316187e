"""Custom gradients that are freed with the graph they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record

# Returns the outputs, and the function that maps their cotangents to the inputs'.
Forward = Callable[..., tuple[Any, Callable[..., Any]]]


def custom_gradient(forward: Forward) -> Callable[..., Any]:
    """Returns a function of tensors with the gradient that `forward` defines.

    A replacement for `tf.custom_gradient`. In graph mode TensorFlow registers each
    gradient function under a new name and never removes it, so that every traced model
    stays in memory with all that its gradient functions refer to. Here the gradient
    function belongs to the operation, and Python frees both together.

    Args:
        forward: Function of tensors that returns `(outputs, backward)`: a tensor or a
            sequence of tensors, and a function from the cotangent of each output to a
            sequence with the cotangent of each input, or `None`. It must not read
            trainable variables: pass their tensors as inputs.

    Example:

    >>> cube = custom_gradient(lambda x: (x**3, lambda dy: [3.0 * x**2 * dy]))
    >>> x = tf.constant(2.0)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = cube(x)
    >>> float(tape.gradient(y, x))
    12.0
    """

    def call(*inputs: tf.Tensor) -> Any:
        check_forward_mode(inputs, "An equilibrium")
        if tf.executing_eagerly():
            return tf.custom_gradient(forward)(*inputs)
        return _call_in_graph(forward, [tf.convert_to_tensor(leaf) for leaf in inputs])

    return call


def without_variables(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a function, which must not read trainable variables.

    Raises:
        TypeError: If it reads one, because its gradient would be lost.
    """
    with record.VariableWatcher() as watcher:
        result = function(*arguments)
    _check_variables(watcher.watched_variables())
    return result


def _call_in_graph(forward: Forward, inputs: list[tf.Tensor]) -> Any:
    outputs, backward = without_variables(forward, *inputs)
    is_sequence = isinstance(outputs, list | tuple)
    results = [tf.convert_to_tensor(leaf) for leaf in outputs] if is_sequence else []
    results = results or [tf.convert_to_tensor(outputs)]
    size = len(results)

    def of_tape(*cotangents: tf.Tensor) -> list[tf.Tensor | None]:
        of_inputs = backward(*cotangents[:size])
        single = not isinstance(of_inputs, Sequence)
        return [None] * size + ([of_inputs] if single else list(of_inputs))

    def of_operation(operation: tf.Operation, *cotangents: tf.Tensor) -> list:
        del operation
        return of_tape(*cotangents)

    # The two ways to a gradient: a tape, and the graph of a `tf.function` that is
    # differentiated as a whole. `tf.custom_gradient` serves both by the same means, but
    # finds the second by a name in a registry that only grows.
    sources = [*results, *inputs]
    graph = tf.compat.v1.get_default_graph()
    with (
        record.stop_recording(),
        graph._override_gradient_function({"IdentityN": of_operation}),
    ):
        tensors = tf.identity_n(sources)
    record.record_operation("CustomGradient", tensors, sources, of_tape)
    return tuple(tensors[:size]) if is_sequence else tensors[0]


def check_forward_mode(tensors: Sequence[tf.Tensor], name: str) -> None:
    """Raises `NotImplementedError` if a `tf.autodiff.ForwardAccumulator` watches one.

    Args:
        tensors: Tensors that a gradient strategy differentiates with respect to.
        name: String. Name of the strategy in the message.
    """
    if forwardprop_util.pack_tangents(list(tensors)).tangents:
        raise NotImplementedError(
            f"{name} has no forward-mode derivative, which "
            "`tf.autodiff.ForwardAccumulator` asks for. Use `tf.GradientTape`, or "
            "products of df/dz with vectors: DEQ.problem(inputs).linearize(state).jvp."
        )


def _check_variables(variables: Sequence[tf.Variable]) -> None:
    if variables:
        raise TypeError(
            "A function with a custom gradient must get trainable variables as inputs, "
            "or their gradient would be lost. Received: a function that reads "
            f"{[variable.name for variable in variables]}. Make the variables weights "
            "of the cell or of one of its sublayers."
        )
