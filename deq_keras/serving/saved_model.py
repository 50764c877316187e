"""Export models to SavedModel, the format of TensorFlow Serving."""

import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from deq_keras.serving.check import export
from deq_keras.serving.runtimes import SavedModelRuntime
from deq_keras.serving.served_model import ServedModel


def export_saved_model(
    model: keras.Model,
    path: str | pathlib.Path,
    input_signature: Any = None,
    samples: Any = None,
    max_iter_limit: int | None = None,
    preprocessor: Callable[[Any], Any] | None = None,
    postprocessor: Callable[[Any, Any, tf.Tensor | None], Any] | None = None,
    tolerance: float = 1e-4,
    metadata: dict[str, Any] | None = None,
) -> float:
    """Exports a model as a SavedModel, and checks it in a fresh process.

    The file requires only TensorFlow, accepts batches of any size, and has three
    signatures:

    * `serve(inputs)`, the default, runs the solvers as configured. It returns the
      outputs and the `status` of each sample.
    * `serve_with_statistics(inputs, max_iter, tol)` takes a budget (int64 scalar) and a
      tolerance (float32 scalar); `max_iter <= 0` and `tol < 0` select the solvers' own,
      and are the defaults in Python. Servers require all inputs of a signature.
      Besides the outputs, it returns `evaluations` (int32), `residual` and `status`
      (int32, see `deq_keras.solvers`: 0 converged, 1 out of budget, 2 non-finite), each
      `(batch,)`.
    * `serve_warm(inputs, initial_state, max_iter, tol)` starts from a given state and
      also returns the `equilibrium`, the `initial_state` of the next request. A sample
      with a non-finite state starts as in the model.

    Inputs have the names of the model: `keras.Input((4,), name="features")` is
    `features`, and an input in a dict has its key. Keys of nested dicts are joined with
    `_`; characters other than ASCII letters and digits become `_`. Inputs without a
    name are `inputs`, or `inputs_0`, `inputs_1`, ... if there are several. Outputs in a
    dict have their keys; others are `outputs`, or `outputs_0`, `outputs_1`, ...

    A model without an equilibrium layer has only `serve`. With several equilibrium
    layers, the names of statistics and states start with the layer's name,
    `LAYER_evaluations`, and the budget applies to each layer. The tensors of a nested
    state are named `initial_state_0`, `initial_state_1`, ...

    Args:
        model: A built `keras.Model`.
        path: Path of the new folder, which must not exist.
        input_signature: Nest of `tf.TensorSpec`s of a request. Defaults to `None`, the
            signature of the preprocessor or of a functional model.
        samples: Nest of arrays `(samples, ...)`, inputs of real requests to check the
            file with; the check uses at most 32. Defaults to `None`: three random
            samples, where the inputs are numbers of known shape.
        max_iter_limit: Positive integer. The largest budget of a request. The file
            spends at most this budget, also if a request or a solver has a larger one,
            and stores it in its metadata; `load` raises for a larger request. Defaults
            to `None`, the largest `max_iter` of the model's solvers and calls.
        preprocessor: Optional function of tensors in a graph, from the inputs of a
            request to the model's inputs, with an attribute `input_signature`. If it
            has tables or variables, it must be a `tf.Module` or a Keras layer for them
            to be saved.
        postprocessor: Optional function that returns the outputs of a response. Its
            arguments are the model's outputs, the model's inputs, and a Boolean tensor
            `(batch,)`, the mask of failed samples (`None` without an equilibrium
            layer).
        tolerance: Positive float. The largest allowed difference of an output, relative
            to the largest output if that exceeds 1. Where the model differs from itself
            by more, in a batch of another size or for inputs that change in the last
            bit, the file may differ as much. Defaults to `1e-4`.
        metadata: Dict of plain data to store in the file, such as the version of the
            model or `{"tuning": tuning.as_dict()}`; `LoadedModel.metadata` returns it.
            Defaults to `None`, an empty dict.

    Returns:
        The largest difference between outputs of the model and of the file.

    Warns:
        UserWarning: If the largest difference exceeds `tolerance`, because results of
            the model depend on rounding. The message compares both.

    Raises:
        FileExistsError: If `path` exists.
        ValueError: If the inputs are unknown, names are reserved or not unique, samples
            do not fit the inputs, or `metadata` is not plain.
        ExportError: If a call changes variables, or the file computes other results.

    Example:

    >>> import tempfile
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> path = f"{tempfile.mkdtemp()}/model"
    >>> export_saved_model(model, path)  # doctest: +SKIP
    0.0
    >>> served = tf.saved_model.load(path)  # doctest: +SKIP
    >>> served.serve_with_statistics(  # doctest: +SKIP
    ...     np.ones((2, 3), "float32"), 2, 0.0)["evaluations"].numpy()
    array([2, 2], dtype=int32)
    """
    served = ServedModel(
        model,
        input_signature,
        max_iter_limit,
        preprocessor,
        postprocessor,
        metadata=metadata,
    )

    def write(folder: pathlib.Path) -> list[Any]:
        endpoints = {"serve": served.serve()}
        if len(served.solve_outputs):
            endpoints["serve_with_statistics"] = served.serve_with_statistics()
            endpoints["serve_warm"] = served.serve_warm()
        archive = keras.export.ExportArchive()
        archive.track(model)
        if isinstance(preprocessor, tf.Module | keras.layers.Layer):
            archive.track(preprocessor)
        for name, function in endpoints.items():
            archive.add_endpoint(name, function)
        # Served models need no gradients; without them files are half as large.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        archive.write_out(folder, options=options, verbose=False)
        # XLA requires constants for shapes. Loops read shapes that are computed before
        # them, so that no iteration computes them, and XLA passes constants into a loop
        # only if it has this mark. TensorFlow sets it where XLA already compiles the
        # traced function.
        file = folder / "saved_model.pb"
        saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        for graph in (meta.graph_def for meta in saved.meta_graphs):
            functions = (one.node_def for one in graph.library.function)
            for node in itertools.chain(graph.node, *functions):
                if node.op.removeprefix("Stateless") in ("While", "If", "Case"):
                    node.attr["_xla_propagate_compile_time_consts"].b = True
        file.write_bytes(saved.SerializeToString(deterministic=True))
        endpoint_functions = list(endpoints.values())
        file = folder / SavedModelRuntime.METADATA
        file.parent.mkdir()
        file.write_text(
            json.dumps(served.metadata(endpoint_functions[-1])), encoding="utf-8"
        )
        return endpoint_functions

    return export(served, path, "", SavedModelRuntime, samples, tolerance, write)
