"""A traced function whose weights are constants, as other runtimes want it."""

import re

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from deq_keras.serving.errors import ExportError
from deq_keras.serving.graph import nodes

# What TensorFlow's optimiser calls the condition of a loop, in every graph alike.
_OPTIMIZED = re.compile(r"(while|cond)\w*_function(_\d+)?")
_HALF = {tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum}


def frozen(function, target):
    """Returns the `tf.ConcreteFunction` of a `tf.function`, with constants for weights
    and its loops as they are.

    Args:
        function: `tf.function` with an input signature.
        target: String, what is made of it, for the message.

    Raises:
        ExportError: If an operation computes in half precision.
    """
    _forget_optimized_functions()
    concrete = convert_variables_to_constants_v2(
        function.get_concrete_function(), lower_control_flow=False
    )
    for node in nodes(concrete):
        if any(value.type in _HALF for value in node.attr.values()):
            raise ExportError(
                f"{target} gets models that compute in float32: make this one again "
                "with that dtype policy, and set its weights. Received: half precision "
                f"in {node.op} of {node.name!r}."
            )
    return _without_placeholders(concrete)


def _forget_optimized_functions():
    """Removes what an export before left behind: functions whose names this one gives
    to others. TensorFlow removes one reference of several."""
    known = context.context()
    for name in filter(_OPTIMIZED.fullmatch, known.list_function_names()):
        while known.has_function(name):
            known.remove_function(name)


def _without_placeholders(concrete):
    """Returns a function in which what hides a value from TensorFlow's optimiser, as a
    compact solve does the number of its samples, passes it on: converters take it for
    an input."""
    graph = concrete.graph.as_graph_def()
    hiding = [node for node in graph.node if node.op == "PlaceholderWithDefault"]
    if not hiding:
        return concrete
    for node in hiding:
        node.op = "Identity"
        node.attr["T"].CopyFrom(node.attr["dtype"])
        for name in ("dtype", "shape"):
            node.attr.pop(name)
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    )
    return wrapped.prune(
        [tensor.name for tensor in concrete.inputs],
        [tensor.name for tensor in concrete.outputs],
    )


def output_names(function):
    """Returns the names of a function's outputs, in the order of the frozen one's."""
    return sorted(function.get_concrete_function().structured_outputs)
