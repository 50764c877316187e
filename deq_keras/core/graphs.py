"""Information about the function being traced, and values read when it is called."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.function.capture.capture_container import FunctionCaptures
from tensorflow.python.ops import control_flow_util
from tensorflow.python.saved_model import save_context


class CallTimeValue:
    """A scalar that a `tf.function` reads when it is called, not when it is traced.

    In a graph, the tensor is an input of the innermost function that is being traced.
    TensorFlow reads its value on each call, in the thread of the caller, even if
    another function makes the call. A saved function uses the default.

    Args:
        read: Function that returns the value, called in eager mode.
        default: Function that returns the value of a saved function.
        dtype: Dtype of the tensor.
        known: Optional function that returns the value if it is known while the caller
            is traced, else `None`.

    Example:

    >>> budget = 3
    >>> value = CallTimeValue(lambda: budget, lambda: 30, tf.int32)
    >>> function = tf.function(lambda x: x * value(), autograph=False)
    >>> int(function(tf.constant(2)))
    6
    >>> budget = 4
    >>> int(function(tf.constant(2)))
    8
    """

    def __init__(
        self,
        read: Callable[[], float | tf.Tensor],
        default: Callable[[], float],
        dtype: tf.DType,
        known: Callable[[], float | tf.Tensor | None] = lambda: None,
    ) -> None:
        self._read = read
        self._default = default
        self._known = known
        self._spec = tf.TensorSpec([], dtype)

    def __call__(self) -> tf.Tensor:
        graph: Any = innermost_function()
        value = self._read() if graph is None else self._known()
        if value is not None:
            return _as_tensor(value, self._spec.dtype)
        captures = graph.function_captures
        if self not in captures.by_val_internal:
            self._capture(graph)
        return captures.by_val_internal[self]

    def _capture(self, graph: tf.Graph) -> None:
        with tf.init_scope():
            saved = tf.cast(self._default(), self._spec.dtype)
        with graph.as_default():
            placeholder = tf.compat.v1.placeholder(self._spec.dtype, self._spec.shape)
        graph.inputs.append(placeholder)
        _CallTimeCaptures.of(graph).add_or_replace(
            key=self,
            external=saved,
            internal=placeholder,
            tracetype=self._spec,
        )

    def value_at_call(self, saved: tf.Tensor) -> tf.Tensor:
        """Returns the value for a call made now, or the value to be saved."""
        return saved if save_context.in_save_context() else self()


def _as_tensor(value: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # `tf.is_tensor` and `tf.cast` of a Python number cost several times as much.
    is_number = isinstance(value, int | float)
    return tf.constant(value, dtype) if is_number else tf.cast(value, dtype)


class _CallTimeCaptures(FunctionCaptures):
    """The captures of a function, some of which are read when the function is called.

    `FuncGraph.capture_call_time_value` makes captures of a separate kind. A SavedModel
    cannot store them, and the LiteRT converter turns them into inputs. Both treat the
    captures of this class as constants.
    """

    @classmethod
    def of(cls, graph: tf.Graph) -> FunctionCaptures:
        """Converts the captures of a graph to this class and returns them."""
        graph.function_captures.__class__ = cls
        return graph.function_captures

    @property
    def by_val_external(self) -> dict[Hashable, Any]:
        """The values that a function passes to its graph; callables are called."""
        return {
            key: functools.partial(key.value_at_call, tensor)
            if isinstance(key, CallTimeValue)
            else tensor
            for key, tensor in super().by_val_external.items()
        }


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
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if getattr(graph, "is_control_flow_graph", False):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def is_being_traced(graph: tf.Graph) -> bool:
    """Returns whether a graph is the graph being built, or contains it."""
    if tf.executing_eagerly():
        return False
    current = tf.compat.v1.get_default_graph()
    while current is not None:
        if current is graph:
            return True
        current = getattr(current, "outer_graph", None)
    return False


def nodes(graph: tf.Graph) -> Iterator[Any]:
    """Yields the nodes of a graph and of the functions that it calls."""
    graph_def = graph.as_graph_def()
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def compiled(function: Callable[..., Any], **options: Any) -> Any:
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


@contextlib.contextmanager
def constant_permutations() -> Iterator[None]:
    """Replaces permutations in gradients of transpositions by constants, in a scope.

    `tf.tensordot`, and thus `keras.layers.Dense`, computes its permutation by an
    operation. The gradient of a loop would store the permutation in every iteration.
    XLA cannot compile it, because it needs a constant.
    """
    if tf.executing_eagerly() or not is_compiled_by_xla():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    num_older = len(graph.get_operations())
    yield
    for operation in graph.get_operations()[num_older:]:
        if operation.type == "Transpose":
            operation._gradient_function = _transposed_back


def _transposed_back(operation: tf.Operation, gradient: tf.Tensor) -> list:
    permutation = operation.inputs[1]
    known = tf.get_static_value(permutation)
    inverse = (
        tf.math.invert_permutation(permutation) if known is None else np.argsort(known)
    )
    return [tf.transpose(gradient, inverse), None]


def is_compiled_by_xla() -> bool:
    """Returns whether XLA compiles the function being traced.

    TensorFlow offers no public function for this.
    """
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def is_vectorized() -> bool:
    """Returns whether `tf.vectorized_map` vectorizes the function being traced.

    It cannot differentiate loops and branches that depend on samples. TensorFlow offers
    no public function for this, but names the scope of the traced function.
    """
    if tf.executing_eagerly():
        return False
    return "loop_body" in tf.get_current_name_scope().split("/")
