"""Run exported files. Needs only NumPy and the runtime of the file's format.

Each class takes the path of a file. Its instances map a dict of arrays, by the names of
the inputs, to a dict of arrays. Their attribute `signatures` is a list of dicts from
names of inputs to `(shape, dtype)`; only a SavedModel has several. `outputs` lists the
names of all outputs. `metadata` is the dict that the export wrote at `METADATA`. It is
empty if an earlier version wrote the file.

`check_export` runs this module as a script, so it imports nothing from this package.
"""

import importlib
import json
import pathlib
import threading
import zipfile
from typing import Any

# Data types that ONNX and NumPy spell differently.
_ONNX_DTYPES = {"float": "float32", "double": "float64"}


def import_extra(name: str) -> Any:
    """Returns a module that the extra `serving` installs.

    Args:
        name: String. The name of the module, such as `"onnx"`.

    Raises:
        ImportError: If it is missing; the message says what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"The package `{package}` is missing. Install what exports need: "
            'pip install ".[serving]" in a clone of deq_keras',
            name=error.name,
        ) from error


class SavedModelRuntime:
    """Runs the signatures of a SavedModel with TensorFlow."""

    # TensorFlow reserves this folder for files that it does not read.
    METADATA = pathlib.Path("assets.extra", "deq_keras.json")

    def __init__(self, path: str | pathlib.Path) -> None:
        import tensorflow as tf

        # Its functions hold their variables weakly, so keep the loaded object.
        self._loaded = tf.saved_model.load(str(path))
        self._functions = {
            frozenset(function.structured_input_signature[1]): function
            for function in self._loaded.signatures.values()
        }
        self.signatures = [
            {
                name: (spec.shape, spec.dtype)
                for name, spec in function.structured_input_signature[1].items()
            }
            for function in self._functions.values()
        ]
        names = [sorted(f.structured_outputs) for f in self._functions.values()]
        self.outputs = list(dict.fromkeys(sum(names, [])))
        path = pathlib.Path(path, self.METADATA)
        self.metadata = json.loads(path.read_bytes()) if path.is_file() else {}

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        import tensorflow as tf

        function = self._functions[frozenset(request)]
        specs = function.structured_input_signature[1]
        tensors = {
            name: tf.constant(request[name], specs[name].dtype) for name in specs
        }
        return {name: tensor.numpy() for name, tensor in function(**tensors).items()}


class LiteRTRuntime:
    """Runs a LiteRT file with `ai-edge-litert`, one request at a time."""

    METADATA = "deq_keras.json"

    def __init__(self, path: str | pathlib.Path) -> None:
        interpreter = import_extra("ai_edge_litert.interpreter")
        # The runner holds no reference to its interpreter.
        self._interpreter = interpreter.Interpreter(model_path=str(path))
        self._runner = self._interpreter.get_signature_runner()
        # An interpreter has one set of buffers; two threads in it crash the process.
        self._lock = threading.Lock()
        self.signatures: list[dict[str, Any]] = [{}]
        for name, tensor in self._runner.get_input_details().items():
            shape = [None if n < 0 else int(n) for n in tensor["shape_signature"]]
            self.signatures[0][name] = shape, tensor["dtype"]
        self.outputs = list(self._runner.get_output_details())
        self.metadata = {}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if self.METADATA in archive.namelist():
                    self.metadata = json.loads(archive.read(self.METADATA))

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._runner(**request)


class ONNXRuntime:
    """Runs an ONNX file with `onnxruntime` on the CPU."""

    METADATA = "deq_keras"

    def __init__(self, path: str | pathlib.Path) -> None:
        runtime = import_extra("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # It warns of inputs with a default.
        self._session = runtime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.outputs = [output.name for output in self._session.get_outputs()]
        properties = self._session.get_modelmeta().custom_metadata_map
        self.metadata = json.loads(properties.get(self.METADATA, "{}"))
        self.signatures: list[dict[str, Any]] = [{}]
        # Inputs with a default are overridable initializers.
        for tensor in (
            *self._session.get_inputs(),
            *self._session.get_overridable_initializers(),
        ):
            shape = [n if isinstance(n, int) else None for n in tensor.shape]
            dtype = tensor.type.removeprefix("tensor(").removesuffix(")")
            self.signatures[0][tensor.name] = shape, _ONNX_DTYPES.get(dtype, dtype)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        tensors = self._session.run(self.outputs, request)
        return dict(zip(self.outputs, tensors, strict=True))
