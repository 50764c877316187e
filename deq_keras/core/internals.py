"""Private parts of TensorFlow and Keras that this package uses, each with its reason.

They work with TensorFlow 2.21 and Keras 3.15.1; `.ci/run` also tests the oldest allowed
versions. If another version changes one of them, the tests of a feature that uses it
fail, or `tests/core/test_internals.py`.
"""

import contextlib
import functools
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from tensorflow.python.eager import context, forwardprop_util, record
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.ops import control_flow_util, gradients_util

from deq_keras.core.structure import Nest

# Names that TensorFlow's optimizer gives to loop conditions and branches of all graphs.
_OPTIMIZED = re.compile(r"(while|cond)\w*_function(_\d+)?")
# Messages of TensorFlow about operands of different dtypes.
_MIXED_DTYPES = re.compile(r"has type \w+ that does not match type")
# Messages of TensorFlow and Keras about operands whose shapes do not fit.
_MISFIT = re.compile(
    r"dimension|incompatible|broadcast|shapes? (must|of|do|are|\()", re.IGNORECASE
)


def function_graph(name: str) -> tf.Graph:
    """Returns a graph to trace in that captures tensors from outside, like a function.

    `tf.function` traces Python functions as a whole, and offers no graph before the
    result is a nest of tensors.

    Args:
        name: String.
    """
    return tf.__internal__.FuncGraph(name)


def is_compiled_by_xla() -> bool:
    """Returns whether XLA compiles the function being traced.

    TensorFlow offers no public function for this.
    """
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def is_index_of_vectorized_map(graph: tf.Graph, scope: str) -> bool:
    """Returns whether `tf.vectorized_map` traces a function in a scope of a graph.

    TensorFlow offers no public function for this. It opens a scope `loop_body`, which
    starts with a placeholder for the index of the sample.

    Args:
        graph: The graph.
        scope: String. The names of scopes, with a slash after each.
    """
    if not scope.split("/")[-2].startswith("loop_body"):
        return False
    try:
        operation = graph.get_operation_by_name(f"{scope}PlaceholderWithDefault")
    except KeyError:
        return False
    return bool(operation.type == "PlaceholderWithDefault")


def differentiate(
    outputs: list[tf.Tensor],
    inputs: list[tf.Tensor],
    cotangents: list[tf.Tensor],
    graph: tf.Graph,
) -> list[tf.Tensor]:
    """Returns the gradients of the outputs in a graph, or zeros.

    Unlike `tf.gradients`, it can differentiate an outer graph: in the backward pass of
    a branch or a loop, f is in the graph of its forward pass.

    Args:
        outputs: List of tensors of `graph`.
        inputs: List of tensors of `graph`.
        cotangents: List of tensors like `outputs`.
        graph: The graph being built, or one around it.
    """
    gradients: list[tf.Tensor] = gradients_util._GradientsHelper(
        outputs,
        inputs,
        cotangents,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
        src_graph=graph,
    )
    return gradients


def record_gradient(
    tensors: list[tf.Tensor], backward: Callable[..., list]
) -> list[tf.Tensor]:
    """Returns copies of tensors, with a gradient that belongs to their operation.

    `tf.custom_gradient` keeps every gradient function in a registry that only grows.

    Args:
        tensors: List of tensors.
        backward: Function from the cotangents of all tensors to those of `tensors`.
    """

    def of_operation(operation: tf.Operation, *cotangents: tf.Tensor) -> list:
        del operation
        return backward(*cotangents)

    # TensorFlow computes a gradient by a tape, or by differentiating the graph of a
    # `tf.function` as a whole. `tf.custom_gradient` supports both in the same way.
    graph = tf.compat.v1.get_default_graph()
    with (
        record.stop_recording(),
        graph._override_gradient_function({"IdentityN": of_operation}),
    ):
        copies: list[tf.Tensor] = tf.identity_n(tensors)
    record.record_operation("CustomGradient", copies, tensors, backward)
    return copies


def may_record_gradients() -> bool:
    """Returns whether a `tf.GradientTape` may record what is computed now.

    TensorFlow offers no public function for this.
    """
    return bool(record.could_possibly_record())


def is_watched(tensors: list[tf.Tensor]) -> bool:
    """Returns whether a `tf.GradientTape` watches one of the tensors.

    TensorFlow offers no public function for this.
    """
    highest = gradients_util.PossibleTapeGradientTypes(tensors)
    return bool(highest != gradients_util.POSSIBLE_GRADIENT_TYPES_NONE)


def may_differentiate_twice(tensors: list[tf.Tensor]) -> bool:
    """Returns whether two tapes, or a persistent one, watch the tensors.

    TensorFlow offers no public function for this.
    """
    highest = gradients_util.PossibleTapeGradientTypes(tensors)
    return bool(highest == gradients_util.POSSIBLE_GRADIENT_TYPES_HIGHER_ORDER)


def run_with(tensors: list[tf.Tensor], update: Callable[[], None]) -> list[tf.Tensor]:
    """Calls a function that updates variables, and returns tensors that need it.

    TensorFlow differentiates a function that is called in eager mode in a graph, of
    which it runs only what the gradients need. Only a private name identifies it.

    Args:
        tensors: List of tensors, such as gradients.
        update: Function without arguments.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not getattr(graph, "name", "").startswith(
        "__backward"
    ):
        update()
        return tensors
    num_operations = len(graph.get_operations())
    update()
    operations = graph.get_operations()[num_operations:]
    updates = [one for one in operations if one.type.startswith("Assign")]
    with tf.control_dependencies(updates):
        return [tf.identity(tensor) for tensor in tensors]


def watch_variables() -> AbstractContextManager:
    """Returns a scope that collects trainable variables as they are read.

    `watched_variables()` of its value returns them. A `tf.GradientTape` would also
    record, and thus keep, everything that is computed.
    """
    watcher: AbstractContextManager = record.VariableWatcher()
    return watcher


def has_forward_accumulator(tensors: list[tf.Tensor]) -> bool:
    """Returns whether a `tf.autodiff.ForwardAccumulator` watches one of the tensors."""
    return bool(forwardprop_util.pack_tangents(tensors).tangents)


def remat_mode(layer: keras.layers.Layer) -> str | None:
    """Returns the mode of the `keras.RematScope` that recomputes calls of a layer.

    `"activations"` recomputes only the activation of a layer, which always works.
    """
    scope = layer._remat_mode
    if scope is None or scope.mode == "activations":
        return None
    is_named = layer.name in (scope.layer_names or ())
    return None if scope.mode == "list_of_layers" and not is_named else scope.mode


def replace_input(operation: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces an input of an operation. TensorFlow offers it only here."""
    operation._update_input(index, tensor)


def set_gradient(operation: tf.Operation, gradient: Callable[..., list]) -> None:
    """Sets the gradient function of an operation.

    A public registry has one function for each type of operation, not for one of them.
    """
    operation._gradient_function = gradient


def keep_branches(operation: tf.Operation) -> None:
    """Keeps the functions of a branch operation apart from the graph around it.

    Only an attribute that TensorFlow sets itself tells it to merge their nodes.
    """
    value = tf.compat.v1.AttrValue(b=False)
    operation._set_attr("_lower_using_switch_merge", value)


def stateless_scope() -> keras.StatelessScope | None:
    """Returns the innermost `keras.StatelessScope`, or `None` outside of any.

    Keras offers no public function for this, but each scope knows the one around it.
    """
    with keras.StatelessScope(initialize_variables=False) as inner:
        return inner.original_scope


@contextlib.contextmanager
def no_stateless_scope() -> Iterator[None]:
    """Leaves the `keras.StatelessScope`s of the caller, for a scope.

    Keras offers no function for this, but the end of a scope restores what it takes for
    the scope around it.
    """
    scope, outer = keras.StatelessScope(initialize_variables=False), stateless_scope()
    try:
        scope.original_scope = None
        scope.__exit__()
        yield
    finally:
        scope.original_scope = outer
        scope.__exit__()


def own_value(variable: keras.Variable) -> Any:
    """Returns the TensorFlow variable of a Keras variable, or `None` before it exists.

    `variable.value` casts to the compute dtype of the layer that reads it.
    """
    return variable._value


def compute_spec(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns the result of a function for nests of `keras.KerasTensor`.

    Keras offers it publicly only for the `call` of a layer.
    """
    return backend.compute_output_spec(function, *args, **kwargs)


def entry_layer(layer: keras.layers.Layer) -> Any:
    """Returns the outermost layer whose call contains the current call of a layer.

    Keras passes it on to inner layers, and offers no public function for it.
    """
    return layer._get_call_context().entry_layer


def flatten_layers(
    layer: keras.layers.Layer, include_self: bool = True
) -> list[keras.layers.Layer]:
    """Returns a layer and its sublayers at all depths.

    The public `keras.Model.layers` lacks the sublayers of layers.
    """
    return list(layer._flatten_layers(include_self=include_self))


def own_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """Returns the list of what `add_loss` of a layer added, which can be changed.

    `layer.losses` is a copy, with penalties on weights and the losses of sublayers.
    """
    return layer._losses


def keras_masks(inputs: Nest) -> Nest:
    """Returns a nest of the masks that Keras attached to the inputs, or of `None`."""
    masks = []
    for leaf in tree.flatten(inputs):
        masks.append(getattr(leaf, "_keras_mask", None))
    return tree.pack_sequence_as(inputs, masks)


def attach_masks(inputs: Nest, masks: Nest) -> Nest:
    """Attaches masks that `keras_masks` returned, and returns the inputs.

    A compiled function drops the masks of its arguments.
    """
    for leaf, mask in zip(tree.flatten(inputs), tree.flatten(masks), strict=True):
        if mask is not None:
            set_keras_mask(leaf, mask)
    return inputs


def set_keras_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask for the layers that are called with the tensor.

    Layers also take it as an argument, but do not pass it on to their sublayers.
    """
    tensor._keras_mask = mask


def is_dtype_error(error: Exception) -> bool:
    """Returns whether TensorFlow raised an error because dtypes do not fit.

    It raises a `TypeError`, as for any wrong argument.
    """
    return _MIXED_DTYPES.search(str(error)) is not None


def is_shape_error(error: Exception) -> bool:
    """Returns whether TensorFlow or Keras raised an error because shapes do not fit.

    They raise a `ValueError` or `InvalidArgumentError`, as for any wrong argument.
    """
    return _MISFIT.search(error_message(error)) is not None


def error_message(error: Exception) -> str:
    """Returns the message of an error, without the text that Keras adds to it.

    Keras prints the message in bold, and adds the arguments of the layer.
    """
    bold = re.search(r"\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    return bold.group(1) if bold else str(error)


def forget_optimized_functions() -> None:
    """Removes functions that TensorFlow's optimizer registered for loops and branches.

    The optimizer of another graph uses the same names, and would find the bodies of
    this one. TensorFlow offers no public function for this.
    """
    known = context.context()
    for name in filter(_OPTIMIZED.fullmatch, known.list_function_names()):
        while known.has_function(name):  # Each removal drops only one reference.
            known.remove_function(name)


@contextlib.contextmanager
def as_traced() -> Iterator[None]:
    """Returns a context in which functions run without TensorFlow's graph optimizer.

    The optimizer fuses and reorders operations, so that the last bits of a function
    differ from those of its operations in eager mode. TensorFlow offers it for all
    functions of a process only.
    """
    owner = context.context()
    options = owner.function_call_options
    owner.function_call_options = _without_optimizer(options.config_proto_serialized)
    try:
        yield
    finally:
        owner.function_call_options = options


@functools.lru_cache(4)
def _without_optimizer(config: bytes) -> Any:
    changed = tf.compat.v1.ConfigProto.FromString(config)
    changed.graph_options.rewrite_options.disable_meta_optimizer = True
    return context.FunctionCallOptions(config_proto=changed)


def with_constants(function: Any) -> Any:
    """Returns a `tf.ConcreteFunction` with constants for variables, and with its loops.

    The public converters of TensorFlow Lite also lower the loops.

    Args:
        function: `tf.ConcreteFunction`.
    """
    return convert_to_constants.convert_variables_to_constants_v2(
        function, lower_control_flow=False
    )


def keras_export_format() -> str | None:
    """Returns the format for which Keras' `model.export` traces a function, if any.

    `"onnx"`, `"openvino"`, `"litert"`, or `None`, also for a SavedModel. Keras does not
    tell layers, so this looks for its modules among the callers (Keras 3.15).
    """
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        package, _, name = frame.f_globals.get("__name__", "").rpartition(".")
        if package == "keras.src.export" and name in ("onnx", "openvino", "litert"):
            return name
        frame = frame.f_back
    return None
