"""Information about the function being traced."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras import tree

from deq_keras.core.internals import (
    is_compiled_by_xla,
    is_index_of_vectorized_map,
    keep_branches,
    replace_input,
    set_gradient,
)


def innermost_function() -> tf.Graph | None:
    """Returns the graph of the function being traced, or `None` in eager mode.

    Branches and loops have their own graphs, and belong to the function around them.
    """
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph if hasattr(graph, "function_captures") else None


def is_in_control_flow() -> bool:
    """Returns whether a branch or a loop is being traced, or a function in one."""
    for graph in _graphs():
        if getattr(graph, "is_control_flow_graph", False):
            return True
    return False


def is_being_traced(graph: tf.Graph) -> bool:
    """Returns whether a graph is the graph being built, or contains it."""
    return any(one is graph for one in _graphs())


def _graphs() -> Iterator[tf.Graph]:
    """Yields the graph being built and the graphs around it; none in eager mode."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def captured_tensors(function: Callable[..., Any], *arguments: Any) -> list[tf.Tensor]:
    """Returns the tensors that a function reads in addition to its arguments.

    TensorFlow finds them when it traces the function.

    Args:
        function: Function of nests of tensors.
        *arguments: The nests.
    """
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    return list(traced.captured_inputs)


def nodes(graph: tf.Graph) -> Iterator[Any]:
    """Yields the nodes of a graph and of the functions that it calls."""
    graph_def = graph.as_graph_def()
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def compile_function(function: Callable[..., Any], **options: Any) -> Any:
    """Returns a `tf.function` that may be traced once for each of many models.

    TensorFlow counts the traces of a method over all of its instances, and warns if
    five of ten calls were traced. For partial functions, it counts each one alone.

    Args:
        function: Function or method.
        **options: Arguments of `tf.function`, other than `autograph`, which is `False`.
    """
    return tf.function(functools.partial(function), autograph=False, **options)


def while_loop(
    continues: Callable[..., tf.Tensor],
    body: Callable[..., tuple],
    state: tuple,
    maximum_iterations: int | None = None,
) -> tuple:
    """Runs `tf.while_loop`, one iteration at a time.

    Iterations in parallel would fill the memory, especially in the gradient on one
    core.

    Args:
        continues: Function of the variables that returns a Boolean scalar tensor. If
            XLA does not compile the loop, it must end the loop after the maximum.
        body: Function of the variables that returns a tuple of their new values.
        state: Tuple of variables, nests of tensors.
        maximum_iterations: Positive integer, or `None` for an open number. Only XLA
            uses it, for the gradient. Elsewhere, TensorFlow would combine it with
            `continues` on the device, and the host would wait for that in each
            iteration.
    """
    return tf.while_loop(
        continues,
        body,
        state,
        parallel_iterations=1,
        maximum_iterations=maximum_iterations if is_compiled_by_xla() else None,
    )


def rare_cond(
    is_rare: tf.Tensor, rare: Callable[[], tuple], usual: Callable[[], tuple]
) -> tuple:
    """Runs `tf.cond` for a long branch that is rarely taken.

    TensorFlow merges the nodes of branches into the graph around them, and visits those
    of the other branch, too. Here it calls a function, unless an int32 tensor enters or
    leaves the branches: TensorFlow keeps it in the memory of the host, and a function
    on a GPU would not find it there.

    Args:
        is_rare: Boolean scalar tensor.
        rare: Function that returns a tuple, a nest of tensors.
        usual: Function that returns a nest like `rare`.
    """
    results = tf.cond(is_rare, rare, usual)
    if not tf.executing_eagerly():
        operation = tree.flatten(results)[0].op
        while operation.type == "Identity":
            operation = operation.inputs[0].op
        tensors = [*operation.inputs, *operation.outputs]
        if tf.int32 not in {tensor.dtype for tensor in tensors}:
            keep_branches(operation)
    return results


@contextlib.contextmanager
def differentiable_by_xla() -> Iterator[None]:
    """Scope whose operations XLA can differentiate in the gradient of a loop.

    XLA needs constants for shapes, permutations and repetitions. TensorFlow's gradient
    of a loop stores what an operation computes in every iteration, also if it is known:

    1. `tf.tensordot`, and thus the layer `Dense`, computes permutations that are known
       when the function is traced. Constants replace them.
    2. A shape with an unknown batch size is known to XLA, but only if the operation
       that reads it belongs to the gradient. `tf.repeat`, and thus `UpSampling2D`, and
       `tf.broadcast_to` get gradients that compute shapes there.
    """
    if not is_compiled_by_xla():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    num_older = len(graph.get_operations())
    yield
    for operation in graph.get_operations()[num_older:]:
        for i, operand in enumerate(operation.inputs):
            if not operand.dtype.is_integer or operand.op.type == "Const":
                continue
            known = tf.get_static_value(operand)
            if known is not None:
                replace_input(operation, i, tf.constant(known, operand.dtype))
        if operation.type in ("BroadcastTo", "Tile"):
            set_gradient(operation, _sum_of_copies)


def _sum_of_copies(operation: tf.Operation, gradient: tf.Tensor) -> list:
    """Returns the gradients of the inputs of a `BroadcastTo` or `Tile`."""
    # XLA knows the shapes of tensors in the graph of the gradient.
    shape, copies_shape = tf.shape(tf.identity(operation.inputs[0])), tf.shape(gradient)
    if operation.type == "BroadcastTo":
        axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=copies_shape)
        return [tf.reshape(tf.reduce_sum(gradient, axes), shape), None]
    num_copies = copies_shape // tf.maximum(shape, 1)
    by_copy = tf.reshape(tf.stack([num_copies, shape], axis=1), [-1])
    axes = tf.range(0, tf.size(by_copy), 2)
    return [tf.reduce_sum(tf.reshape(gradient, by_copy), axes), None]


def is_vectorized() -> bool:
    """Returns whether `tf.vectorized_map` vectorizes the function being traced.

    It cannot differentiate loops and branches that depend on samples.
    """
    for graph in _graphs():
        scope = ""
        for name in graph.get_name_scope().split("/"):
            scope += f"{name}/"
            if is_index_of_vectorized_map(graph, scope):
                return True
    return False
