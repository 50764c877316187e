"""Export models to ONNX with each solver as one Loop."""

import itertools
import json
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from deq_keras.serving.check import ExportError, export
from deq_keras.serving.runtimes import ONNXRuntime, import_extra
from deq_keras.serving.served_model import (
    DEFAULTS,
    ServedModel,
    freeze,
    output_names,
)

_OPSET = 18


def export_onnx(
    model: keras.Model,
    path: str | pathlib.Path,
    input_signature: Any = None,
    samples: Any = None,
    max_iter_limit: int | None = None,
    warm_start: bool = False,
    tolerance: float = 1e-4,
    metadata: dict[str, Any] | None = None,
) -> float:
    """Exports a model as an ONNX file, and checks it in a fresh process.

    The file has the inputs and outputs of `export_litert`, in the same order, and
    accepts batches of any size. `max_iter` and `tol` are optional inputs: initializers
    of the graph are their defaults. The conversion requires the packages `tf2onnx` and
    `onnx`, the check `onnxruntime`.

    Args:
        model: A built `keras.Model` that computes in float32.
        path: Path of the new file, which must not exist. Its name ends in `.onnx`.
        input_signature: See `export_saved_model`.
        samples: See `export_saved_model`.
        max_iter_limit: See `export_saved_model`.
        warm_start: See `export_litert`.
        tolerance: See `export_saved_model`.
        metadata: See `export_saved_model`. Defaults to `None`.

    Returns:
        The largest difference between outputs of the model and of the file.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If a package is missing.
        ValueError: See `export_saved_model`; also if `path` lacks the suffix, or an
            input and an output have the same name.
        ExportError: If ONNX lacks an operation of the model, or the file computes other
            results. The message names the operation.

    Example:

    >>> import tempfile
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> path = f"{tempfile.mkdtemp()}/model.onnx"
    >>> difference = export_onnx(model, path, warm_start=True)
    >>> loaded = deq_keras.serving.load(path)
    >>> list(loaded(np.ones((2, 3), "float32")))
    ['outputs', 'evaluations', 'residual', 'status', 'equilibrium']
    """
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        import_extra(name)
    served = ServedModel(model, input_signature, max_iter_limit, metadata=metadata)

    def write(file: pathlib.Path) -> list[Any]:
        function = served.single_function(warm_start)
        converted = _convert(function, served.metadata(function))
        file.write_bytes(converted.SerializeToString())
        return [function]

    return export(served, path, ".onnx", ONNXRuntime, samples, tolerance, write)


def _convert(function: Any, metadata: dict[str, Any]) -> Any:
    """Returns the ONNX model of a `tf.function`, with metadata."""
    import onnx
    from tf2onnx import tfonnx

    # 1. Freeze the weights, and list the names in the order of all formats.
    concrete, tensors = freeze(function, "ONNX")
    inputs = [tensor.name for tensor in concrete.inputs]
    # The file lists outputs first, then statistics and equilibria.
    output_keys = output_names(function)
    outputs = [tensors[key].name for key in output_keys]
    input_keys = [spec.name for spec in function.input_signature]
    if shared := set(input_keys) & set(output_keys):
        raise ValueError(
            "Inputs and outputs of an ONNX file must have different names. Rename one "
            f"of each. Received: both named {sorted(shared)}."
        )
    names = input_keys + output_keys
    # 2. Give the graph the shapes and names that tf2onnx needs.
    definition = concrete.graph.as_graph_def()
    functions = definition.library.function
    nested = {
        attribute.func.name
        for function in functions
        for node in function.node_def
        for attribute in node.attr.values()
    }
    for index, inner in enumerate(functions):
        # tf2onnx recognizes the steps of an LSTM or a GRU, and needs their weights as
        # constants. In the loop of a solver they are arguments: hide the steps.
        for node in list(inner.node_def):
            if inner.signature.name in nested and node.op == "TensorListSetItem":
                identity = inner.node_def.add(name=f"{node.name}_item", op="Identity")
                identity.attr["T"].CopyFrom(node.attr["element_dtype"])
                identity.input.append(node.input[2])
                node.input[2] = f"{identity.name}:output:0"
        # Without these incomplete shapes, tf2onnx infers shapes from the caller.
        for argument in inner.arg_attr.values():
            argument.attr.pop("_output_shapes", None)
        # tf2onnx confuses an argument with a tensor of the same name in the caller:
        # make the names of an inner function unique.

        def unique(reference: str, prefix: str = f"f{index}_") -> str:
            # argument, operation:output:index or ^operation
            mark = "^" if reference.startswith("^") else ""
            return f"{mark}{prefix}{reference.removeprefix('^')}"

        for argument in inner.signature.input_arg:
            argument.name = unique(argument.name)
        for node in inner.node_def:
            node.name = unique(node.name)
            node.input[:] = [unique(reference) for reference in node.input]
        for returned in (inner.ret, inner.control_ret):
            for name, reference in list(returned.items()):
                returned[name] = unique(reference)
    # 3. Convert. tf2onnx warns about each unknown shape.
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
        try:
            converted = tfonnx.process_tf_graph(
                graph,
                opset=_OPSET,
                custom_op_handlers=_HANDLERS,
                input_names=inputs,
                output_names=outputs,
                tensors_to_rename=dict(zip(inputs + outputs, names, strict=True)),
            )
        except Exception as error:
            raise ExportError(f"tf2onnx cannot convert this model: {error}") from error
    # Skip tf2onnx' optimizer: it takes most of the time, and runtimes have better ones.
    model = converted.make_model("deq_keras")
    lacking = [
        f"{node.op_type} in {node.name!r}"
        for node in _nodes(model.graph)
        if not node.domain and not onnx.defs.has(node.op_type)
    ]
    if lacking:
        raise ExportError(
            "ONNX has no operator for some operations of the model. Replace them in "
            f"their layers. Received: {', '.join(lacking)[:1000]}."
        )
    # 4. Repair loops and branches.
    numbers = itertools.count()
    for node in _nodes(model.graph):
        if node.op_type == "Loop":
            # ONNX Runtime needs the rank of the counter and the condition of a loop in
            # a loop. tf2onnx sometimes omits it.
            for scalar in node.attribute[0].g.input[:2]:
                scalar.type.tensor_type.shape.SetInParent()
        for body in (one.g for one in node.attribute if one.HasField("g")):
            # OpenVINO cannot convert a body that returns an input as it is.
            computed = {name for inner in body.node for name in inner.output}
            for output in body.output:
                if output.name not in computed:
                    name = f"copied_output_{next(numbers)}"
                    copy = onnx.helper.make_node("Identity", [output.name], [name])
                    body.node.append(copy)
                    output.name = name
    # 5. Add metadata and defaults: an initializer with the name of an input.
    onnx.helper.set_model_props(model, {ONNXRuntime.METADATA: json.dumps(metadata)})
    for value in model.graph.input:
        if value.name in DEFAULTS:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(
                value.type.tensor_type.elem_type
            )
            default = np.array(DEFAULTS[value.name], dtype)
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(default, value.name)
            )
    onnx.checker.check_model(model)
    return model


def _where(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts `Select` to `Where`. tf2onnx computes `c * x + (1 - c) * y` instead,
    which is NaN where an unselected residual is infinite."""
    del context, name, arguments
    node.type = "Where"


def _with_one(
    context: Any, node: Any, name: str, arguments: tuple[str, bool, str]
) -> None:
    """Converts an operation that ONNX lacks to another one and a sum with 1.

    The result is exact to about 1e-7, not to 1e-7 of itself where it is near 0.

    Args:
        arguments: The operator, whether the sum is its input, and `"1 - x"`, `"1 + x"`
            or `"x - 1"`.
    """
    from tf2onnx import utils

    del name
    operator, is_sum_first, form = arguments
    inputs, outputs = node.input, node.output
    dtypes, shapes = node.output_dtypes, node.output_shapes
    context.remove_node(node.name)
    dtype = utils.map_onnx_to_numpy_type(dtypes[0])
    one = context.make_const(utils.make_name("one"), np.ones((), dtype)).output[0]

    last = {"name": node.name, "outputs": outputs}

    def add(kind: str, operands: list[str], **options: Any) -> str:
        made = context.make_node(
            kind, operands, dtypes=dtypes, shapes=shapes, **options
        )
        return made.output[0]

    def add_one(x: str, **options: Any) -> str:
        operands = [one, x] if form.startswith("1") else [x, one]
        return add("Add" if "+" in form else "Sub", operands, **options)

    if is_sum_first:
        add(operator, [add_one(inputs[0])], **last)
    else:
        add_one(add(operator, inputs), **last)


def _tensor_list(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a list of time steps, which an RNN loops over, to its tensor. tf2onnx
    keeps the shape as a second input of `Identity`, and its optimizer repairs that."""
    del name, arguments
    if any(
        consumer.is_while()
        for consumer in context.find_output_consumers(node.output[0])
    ):
        node.type = "Identity"
        context.remove_input(node, node.input[1], 1)
        context.copy_dtype(node.input[0], node.output[0])
        context.copy_shape(node.input[0], node.output[0])


# By TensorFlow operation: the handler and its arguments, without the first one.
_HANDLERS: dict[str, tuple[Any, Any]] = {
    "Select": (_where, []),
    "SelectV2": (_where, []),
    # Keras' default GELU contains it.
    "Erfc": (_with_one, ("", "Erf", False, "1 - x")),
    "Expm1": (_with_one, ("", "Exp", False, "x - 1")),
    "Log1p": (_with_one, ("", "Log", True, "1 + x")),
    "TensorListFromTensor": (_tensor_list, []),
}


def _nodes(graph: Any) -> Iterator[Any]:
    """Yields the nodes of a graph, and of the bodies of its loops and branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
