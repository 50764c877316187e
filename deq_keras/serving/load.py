"""Exported files as functions, each in its own runtime."""

import pathlib

from deq_keras.serving import litert_runtime, onnx_runtime, saved_model_runtime
from deq_keras.serving.extras import imported

_RUNTIMES = {
    ".tflite": ("ai_edge_litert", litert_runtime),
    ".onnx": ("onnxruntime", onnx_runtime),
}


def load(path):
    """Returns an exported file as a function from requests to answers.

    Args:
        path: String or `pathlib.Path`: a folder with a SavedModel, or a file whose name
            ends in `.tflite` or `.onnx`.

    Returns:
        Function of a dict of arrays, which has the names of the inputs of the file (of
        one of its signatures, if it is a SavedModel), to a dict of arrays.

    Raises:
        ValueError: If there is no such file.
        ImportError: If the package of its runtime is missing.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return saved_model_runtime.load(path)
    if not path.is_file() or path.suffix not in _RUNTIMES:
        raise ValueError(
            "Expected the folder of a SavedModel, or a file whose name ends in "
            f"{' or '.join(_RUNTIMES)}. Received: path={str(path)!r}, which is "
            f"{'neither' if path.exists() else 'not there'}."
        )
    package, runtime = _RUNTIMES[path.suffix]
    imported(package)
    return runtime.load(path)
