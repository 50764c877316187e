"""Exports to ONNX, where the solver is one Loop."""

import logging

import numpy as np
import tensorflow as tf

from deq_keras.checks import check_positive
from deq_keras.serving import onnx_runtime
from deq_keras.serving.check import check_export
from deq_keras.serving.errors import ExportError
from deq_keras.serving.extras import imported
from deq_keras.serving.freezing import frozen, output_names
from deq_keras.serving.new_path import writing
from deq_keras.serving.samples import checked_samples
from deq_keras.serving.served_model import ServedModel

_OPSET = 18


def export_onnx(
    model,
    path,
    input_signature=None,
    samples=None,
    max_iter_limit=None,
    warm_start=False,
    tolerance=1e-4,
):
    """Exports a model as an ONNX file, and checks it in a fresh process.

    The inputs and outputs are those of `export_litert`; a batch of any size is served.
    Needs the packages `tf2onnx` and `onnx`, and `onnxruntime`, with which the file is
    checked.

    Args:
        model: A built `keras.Model` that computes in float32.
        path: Where to write: a file that is not there yet.
        input_signature: See `export_saved_model`.
        samples: See `export_saved_model`.
        max_iter_limit: See `export_saved_model`.
        warm_start: See `export_litert`.
        tolerance: See `export_saved_model`.

    Returns:
        The largest difference of an output between model and file.

    Raises:
        FileExistsError: If there is something at `path`.
        ImportError: If a package is missing.
        ValueError: If the inputs are not known, or samples do not fit them.
        ExportError: If ONNX lacks an operation, which is named, or the file gives other
            answers.

    Example:

    >>> import tempfile
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> path = f"{tempfile.mkdtemp()}/model.onnx"
    >>> difference = export_onnx(model, path, warm_start=True)
    >>> ask = deq_keras.serving.load(path)
    >>> answer = ask({"inputs": np.ones((2, 3), "float32"),
    ...               "initial_state": np.full((2, 4), np.nan, "float32"),
    ...               "max_iter": np.array(0), "tol": np.array(-1, "float32")})
    >>> sorted(answer)
    ['equilibrium', 'evaluations', 'outputs', 'residual', 'status']
    """
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        imported(name)
    tolerance = check_positive("tolerance", tolerance)
    with writing(path) as temporary:
        served = ServedModel(model, input_signature, max_iter_limit)
        samples = checked_samples(served.signature, samples)
        function = served.whole(warm_start)
        temporary.write_bytes(_converted(function).SerializeToString())
        return check_export(
            temporary,
            onnx_runtime,
            [function],
            {**samples, **served.states(samples)},
            tolerance,
        )


def _converted(function):
    """Returns the ONNX model."""
    import onnx
    from tf2onnx import tfonnx

    # It reports each shape that it does not know.
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    concrete = frozen(function, "ONNX")
    inputs = [tensor.name for tensor in concrete.inputs]
    sorted_outputs = [tensor.name for tensor in concrete.outputs]
    tensors = dict(zip(output_names(function), sorted_outputs, strict=True))
    # The file lists outputs first, then what the solves found.
    output_keys = list(function.get_concrete_function().structured_outputs)
    outputs = [tensors[key] for key in output_keys]
    names = [spec.name for spec in function.input_signature] + output_keys
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(_prepared(concrete), name="")
        converted = tfonnx.process_tf_graph(
            graph,
            opset=_OPSET,
            custom_op_handlers=_HANDLERS,
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=dict(zip(inputs + outputs, names, strict=True)),
        )
    # Its optimizer takes most of the time, and runtimes have better ones.
    model = converted.make_model("deq_keras")
    _check_operators(model.graph)
    onnx.checker.check_model(model)
    return model


def _prepared(concrete):
    """Returns the graph of a function in which tf2onnx knows shapes and names."""
    graph = concrete.graph.as_graph_def()
    for index, function in enumerate(graph.library.function):
        _forget_shapes(function)
        _rename(function, f"f{index}_")
    return graph


def _forget_shapes(function):
    """Lets an inner function have the shapes of what it is called with: those that it
    notes of its arguments forget most."""
    for argument in function.arg_attr.values():
        argument.attr.pop("_output_shapes", None)


def _rename(function, prefix):
    """Gives the tensors of an inner function names that no other one has. tf2onnx takes
    an argument for what its caller calls by the same name."""

    def renamed(reference):  # argument, operation:output:index or ^operation
        mark = "^" if reference.startswith("^") else ""
        return f"{mark}{prefix}{reference.removeprefix('^')}"

    for argument in function.signature.input_arg:
        argument.name = renamed(argument.name)
    for node in function.node_def:
        node.name = renamed(node.name)
        node.input[:] = [renamed(reference) for reference in node.input]
    for returned in (function.ret, function.control_ret):
        for name, reference in list(returned.items()):
            returned[name] = renamed(reference)


def _where(context, node, name, arguments):
    """Keeps a choice a choice. tf2onnx makes `c * x + (1 - c) * y` of it, and 0 times
    the residual of a sample without one, which is infinite, is not a number."""
    del context, name, arguments
    node.type = "Where"


def _erfc(context, node, name, arguments):
    """Converts `Erfc`, which Keras' default GELU contains and ONNX lacks, to 1 - erf.
    The difference is exact to about 1e-7, which GELU multiplies by x."""
    from tf2onnx import utils

    del name, arguments
    outputs, dtypes, shapes = node.output, node.output_dtypes, node.output_shapes
    context.remove_node(node.name)
    erf = context.make_node("Erf", node.input, dtypes=dtypes, shapes=shapes)
    dtype = utils.map_onnx_to_numpy_type(dtypes[0])
    one = context.make_const(utils.make_name("one"), np.ones((), dtype))
    context.make_node(
        "Sub",
        [one.output[0], erf.output[0]],
        name=node.name,
        outputs=outputs,
        dtypes=dtypes,
        shapes=shapes,
    )


# By operation of TensorFlow, with the arguments of the handler.
_HANDLERS = {"Select": (_where, []), "SelectV2": (_where, []), "Erfc": (_erfc, [])}


def _check_operators(graph):
    import onnx

    lacking = [
        f"{node.op_type} in {node.name!r}"
        for node in _nodes(graph)
        if not node.domain and not onnx.defs.has(node.op_type)
    ]
    if lacking:
        raise ExportError(
            "ONNX has no operator for some operations of the model. Replace them in "
            f"their layers. Received: {', '.join(lacking)[:1000]}."
        )


def _nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
