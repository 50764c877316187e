"""Custom gradients that are freed with the graph they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record

# Returns the outputs, and the function from their cotangents to input cotangents.
Forward = Callable[..., tuple[Any, Callable[..., Any]]]
# Maps the tangents of the inputs to the tangents of the outputs.
Tangent = Callable[..., Sequence[tf.Tensor]]


def custom_gradient(
    forward: Forward, tangent: Tangent | Literal["transposed"] | None = None
) -> Callable[..., Any]:
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
        tangent: Rule of forward mode: a function from the tangent of each input to a
            sequence with the tangent of each output. `"transposed"`: TensorFlow
            transposes `backward`, which must be differentiable. `None`:
            `tf.autodiff.ForwardAccumulator` raises an error. Defaults to `None`.

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
        tensors = [tf.convert_to_tensor(leaf) for leaf in inputs]
        if tangent is None:
            check_forward_mode(tensors, "An equilibrium")
        return _call(forward, tangent, tensors)

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


def _call(
    forward: Forward,
    tangent: Tangent | Literal["transposed"] | None,
    inputs: list[tf.Tensor],
) -> Any:
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

    # TensorFlow computes a gradient by a tape, or by differentiating the graph of a
    # `tf.function` as a whole. `tf.custom_gradient` supports both in the same way, but
    # looks up the graph's gradient by name in a registry that only grows.
    sources = [*results, *inputs]
    graph = tf.compat.v1.get_default_graph()
    with (
        record.stop_recording(),
        graph._override_gradient_function({"IdentityN": of_operation}),
    ):
        tensors = tf.identity_n(sources)
    # Without a function for tangents, TensorFlow transposes `backward`.
    of_accumulator = None
    if callable(tangent):

        def of_accumulator(*tangents: tf.Tensor) -> list[tf.Tensor]:
            return [*tangent(*tangents[size:]), *tangents[size:]]

    record.record_operation("CustomGradient", tensors, sources, of_tape, of_accumulator)
    return tuple(tensors[:size]) if is_sequence else tensors[0]


def is_in_forward_mode(tensors: Sequence[tf.Tensor]) -> bool:
    """Returns whether a `tf.autodiff.ForwardAccumulator` watches one of the tensors."""
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)


# In this context, the `tangent` rule of `custom_gradient` can differentiate. Outside of
# it, tapes that the rule creates do not record the rule.
resumed_forward_mode = forwardprop_util.push_forwardprop_state


def check_forward_mode(tensors: Sequence[tf.Tensor], name: str) -> None:
    """Raises `NotImplementedError` if a `ForwardAccumulator` watches a tensor.

    Args:
        tensors: Tensors that a gradient strategy differentiates with respect to.
        name: String. Name of the strategy in the message.
    """
    if is_in_forward_mode(tensors):
        raise NotImplementedError(
            f"{name} has no forward-mode derivative here, which "
            "`tf.autodiff.ForwardAccumulator` asks for. Call the layer with "
            "`training=False`, outside of a SolveScope, with ImplicitGradient, "
            "NeumannGradient or TruncatedGradient as its gradient; or use "
            "`tf.GradientTape`, or products of df/dz with vectors: "
            "DEQ.problem(inputs).linearize(state).jvp."
        )


def _check_variables(variables: Sequence[tf.Variable]) -> None:
    if variables:
        raise TypeError(
            "A function with a custom gradient must get trainable variables as inputs, "
            "or their gradient would be lost. Received: a function that reads "
            f"{[variable.name for variable in variables]}. Make the variables weights "
            "of the cell or of one of its sublayers."
        )
