"""Export models to LiteRT with built-in operators only."""

import json
import pathlib
import re
import tempfile
import zipfile
from typing import Any

import keras
import tensorflow as tf

from deq_keras.core.checks import check_optional_count
from deq_keras.serving.check import ExportError, export
from deq_keras.serving.runtimes import LiteRTRuntime, import_extra
from deq_keras.serving.served_model import ServedModel, freeze, output_names

# Matches the converter's error for an unsupported operation: its name and location.
_LACKING = re.compile(r'\["(\w+):", "([^"@]+)[^\n]*?op is neither a custom op')
# Matches the converter's error for int8 activations: their operation.
_INT8 = re.compile(r'"\w+:", "([^"@]+)[^\n]*?operand #\d+ must be [^\n]*?xi8>')


def export_litert(
    model: keras.Model,
    path: str | pathlib.Path,
    input_signature: Any = None,
    samples: Any = None,
    max_iter_limit: int | None = None,
    batch_size: int | None = None,
    warm_start: bool = False,
    tolerance: float = 1e-4,
    metadata: dict[str, Any] | None = None,
) -> float:
    """Exports a model as a LiteRT file, and checks it in a fresh process.

    The file has one signature. Besides the inputs, it takes a budget (int64 scalar
    `max_iter`) and a tolerance (float32 scalar `tol`). Besides the outputs, it returns
    statistics; `export_saved_model` explains the names. The order is inputs, initial
    states, `max_iter`, `tol`, and outputs, evaluations, residual, status, equilibria.
    An interpreter requires all inputs; `load` adds the defaults. The signature of a
    model without an equilibrium layer has only its inputs and outputs. The check
    requires the package `ai-edge-litert`.

    Args:
        model: A built `keras.Model` that computes in float32.
        path: Path of the new file, which must not exist. Its name ends in `.tflite`.
        input_signature: See `export_saved_model`.
        samples: See `export_saved_model`.
        max_iter_limit: See `export_saved_model`.
        batch_size: Positive integer. Fixed number of samples per request, which some
            accelerator delegates require. Defaults to `None`, any number.
        warm_start: Boolean. Whether the signature also takes `initial_state` and
            returns `equilibrium`. Defaults to `False`.
        tolerance: See `export_saved_model`.
        metadata: See `export_saved_model`. Defaults to `None`.

    Returns:
        The largest difference between outputs of the model and of the file.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If a package is missing.
        ValueError: See `export_saved_model`; also if `path` lacks the suffix.
        ExportError: If LiteRT lacks an operation of the model, or the file computes
            other results. The message names the operation.

    Example:

    >>> import tempfile
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> path = f"{tempfile.mkdtemp()}/model.tflite"
    >>> difference = export_litert(model, path)
    >>> loaded = deq_keras.serving.load(path)
    >>> loaded(np.ones((2, 3), "float32"), max_iter=2, tol=0.0)["evaluations"]
    array([2, 2], dtype=int32)
    """
    import_extra("ai_edge_litert")
    batch_size = check_optional_count("batch_size", batch_size)
    served = ServedModel(
        model,
        input_signature,
        max_iter_limit,
        batch_size=batch_size,
        metadata=metadata,
    )

    def write(file: pathlib.Path) -> list[Any]:
        function = served.single_function(warm_start)
        file.write_bytes(_convert(function))
        # LiteRT keeps associated files in a ZIP archive after the model.
        with zipfile.ZipFile(file, "a") as archive:
            text = json.dumps(served.metadata(function))
            # Without a timestamp, equal models produce equal files.
            archive.writestr(zipfile.ZipInfo(LiteRTRuntime.METADATA), text)
        return [function]

    return export(
        served, path, ".tflite", LiteRTRuntime, samples, tolerance, write, batch_size
    )


def _convert(function: Any) -> bytes:
    """Returns the bytes of the file of a `tf.function`."""
    # 1. Replace variables by constants, and name inputs and outputs again.
    concrete, outputs = freeze(function, "LiteRT")

    @tf.function(input_signature=function.input_signature, autograph=False)
    def serve(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(zip(outputs, concrete(*tensors), strict=True))

    module = tf.Module()
    module.serve = serve
    # 2. Save and reload: converting the frozen function directly loses its names, and
    #    LiteRT loops cannot read weights that are not frozen.
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        # Hides warnings about gradients, which a served file does not need.
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")
        try:
            tf.saved_model.save(module, folder, {"serve": serve}, options)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            content = bytearray(converter.convert())
        except Exception as error:
            raise _error(str(error)) from error
        finally:
            logger.setLevel(level)
    # 3. Give inputs and outputs the order of the function, in place: packing the file
    #    again would not align its weights.
    schema = import_extra("ai_edge_litert.schema_py_generated")
    model = schema.Model.GetRootAs(content)
    served = model.SignatureDefs(0)
    graph = model.Subgraphs(served.SubgraphIndex())
    for tensors, indices, names in (
        (
            [served.Inputs(i) for i in range(served.InputsLength())],
            graph.InputsAsNumpy(),
            [spec.name for spec in function.input_signature],
        ),
        (
            [served.Outputs(i) for i in range(served.OutputsLength())],
            graph.OutputsAsNumpy(),
            output_names(function),
        ),
    ):
        by_name = {tensor.Name().decode(): tensor.TensorIndex() for tensor in tensors}
        indices[:] = [by_name[name] for name in names]
    return bytes(content)


def _error(text: str) -> ExportError:
    """Returns the error for a message of the converter."""
    if "TensorListReserve" in text:
        return ExportError(
            "LiteRT cannot loop over time steps of a batch of unknown size. Give "
            "`batch_size`, or build the RNN layers with `unroll=True`. Received: a "
            "model with a loop that is not a solver's."
        )
    if integers := _INT8.search(text):
        return ExportError(
            "LiteRT cannot compute with the int8 activations of Keras. Quantize "
            "weights alone: model.quantize(config=keras.quantizers."
            "Int8QuantizationConfig(activation_quantizer=None)), or "
            'model.quantize("int4"). ONNX files and SavedModels accept both. '
            f"Received: int8 activations in {integers[1]!r}."
        )
    lacking = dict.fromkeys(_LACKING.findall(text))
    if not lacking:
        return ExportError(f"LiteRT cannot convert this model: {text}")
    places = ", ".join(f"{kind} in {place!r}" for kind, place in lacking)
    return ExportError(
        "LiteRT has no built-in operator for some operations of the model. Replace "
        "them in their layers, or give an `input_signature` in which only the "
        f"batch axis is open. Received: {places[:1000]}."
    )
