"""Custom gradients that are freed with the graph they belong to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.internals import (
    has_forward_accumulator,
    record_gradient,
    watch_variables,
)

# Returns the outputs, and the function from their cotangents to input cotangents.
Forward = Callable[..., tuple[Any, Callable[..., Any]]]


def custom_gradient(forward: Forward) -> Callable[..., Any]:
    """Returns a function of tensors with the gradient that `forward` defines.

    Use it instead of `tf.custom_gradient`. In graph mode, `tf.custom_gradient` adds
    each gradient function to a registry and never removes it, so every traced model
    stays in memory with all that its gradient functions refer to. Here, the gradient
    function belongs to the operation, and Python frees both together.

    Args:
        forward: Function of tensors that returns `(outputs, backward)`: a tensor or a
            sequence of tensors, and a function from the cotangent of each output to a
            sequence with the cotangent of each input, or `None`. `forward` must not
            read trainable variables: pass their tensors as inputs.

    Raises:
        NotImplementedError: If a `tf.autodiff.ForwardAccumulator` watches an input.
            TensorFlow would transpose `backward`, which need not be differentiable.

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
        tensors = [*map(tf.convert_to_tensor, inputs)]
        if has_forward_accumulator(tensors):
            raise NotImplementedError(
                "`tf.autodiff.ForwardAccumulator` cannot differentiate a custom "
                "gradient. Use `tf.GradientTape`, or products of df/dz with vectors: "
                "DEQ.problem(inputs).linearize(state).jvp."
            )
        outputs, backward = without_variables(forward, *tensors)
        is_sequence = isinstance(outputs, list | tuple)
        results = [*map(tf.convert_to_tensor, outputs)] if is_sequence else []
        results = results or [tf.convert_to_tensor(outputs)]
        size = len(results)

        def of_all(*cotangents: tf.Tensor) -> list[tf.Tensor | None]:
            of_inputs = backward(*cotangents[:size])
            single = not isinstance(of_inputs, Sequence)
            return [None] * size + ([of_inputs] if single else list(of_inputs))

        copies = record_gradient([*results, *tensors], of_all)
        return tuple(copies[:size]) if is_sequence else copies[0]

    return call


def stop_gradient(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor without gradient in this process, but with one in a SavedModel.

    A SavedModel does not contain Python functions, so operations with a custom gradient
    become identities in it. Use this function for a tensor whose gradient is replaced
    by a custom gradient: with `tf.stop_gradient`, a loaded file would have a gradient
    of zero.
    """
    if tf.executing_eagerly():
        return tf.stop_gradient(tensor)  # The tape would record what follows.
    stop = custom_gradient(lambda leaf: (tf.identity(leaf), lambda _: [None]))
    stopped: tf.Tensor = stop(tensor)
    return stopped


def without_variables(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a function, which must not read trainable variables.

    Raises:
        TypeError: If it reads one, because its gradient would be lost.
    """
    with watch_variables() as watcher:
        result = function(*arguments)
    if watcher.watched_variables():
        raise TypeError(
            "A function with a custom gradient must get trainable variables as inputs, "
            "or their gradient would be lost. Received: a function that reads "
            f"{[variable.name for variable in watcher.watched_variables()]}. Make the "
            "variables weights of the cell or of one of its sublayers."
        )
    return result


def guard_second_order(
    carrier: Any, name: str, reason: str, is_refused: bool = True
) -> Any:
    """Returns `carrier`, with a gradient that raises or warns if it is differentiated.

    Use it for a gradient that holds z* constant: its second derivatives are wrong.

    Args:
        carrier: Any of tensors.
        name: String. Name of the gradient that the user chose, for the message.
        reason: String. Why the second derivative is wrong.
        is_refused: Boolean. Whether to raise an error. Otherwise, warns.
    """
    kind = "no" if is_refused else "only approximate"
    message = (
        f"{name} has {kind} second derivatives: {reason}. For second derivatives, use "
        "ImplicitGradient; or UnrolledGradient or TruncatedGradient(num_free_steps=0), "
        "and call the layer with `training=True`."
    )

    def second_order(gradient: tf.Tensor) -> list[tf.Tensor | None]:
        if is_refused:
            raise NotImplementedError(message)
        warnings.warn(message, stacklevel=2)
        return [gradient, None]

    def guard(leaf: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        # The first derivative also takes `leaf`, which connects it to everything that
        # the equilibrium depends on. Otherwise a second derivative would be zero.
        first_order = custom_gradient(
            lambda cotangent, source: (tf.identity(cotangent), second_order)
        )
        return tf.identity(leaf), lambda cotangent: first_order(cotangent, leaf)

    return tree.map_structure(custom_gradient(guard), carrier)
