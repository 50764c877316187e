"""Exported files as functions, each in its own runtime."""

import pathlib

import tensorflow as tf

from deq_keras.serving import litert_runtime, onnx_runtime, saved_model_runtime
from deq_keras.serving.extras import imported
from deq_keras.serving.request import (
    checked_request,
    chosen_signature,
    num_rows,
    one_row,
)

_RUNTIMES = {
    ".tflite": ("ai_edge_litert", litert_runtime),
    ".onnx": ("onnxruntime", onnx_runtime),
}


def load(path):
    """Returns an exported file as a function from requests to answers.

    The function checks a request before the runtime sees it: names, ranks, static
    dimensions, kinds of dtypes, and that all inputs and initial states have the same
    number of rows. It converts numbers of another width. A request without samples gets
    an answer without rows. Threads may share the function; LiteRT answers one request
    at a time.

    Args:
        path: String or `pathlib.Path`: a folder with a SavedModel, or a file whose name
            ends in `.tflite` or `.onnx`.

    Returns:
        Function of a dict of arrays, which has the names of the inputs of the file (of
        one of its signatures, if it is a SavedModel), to a dict of arrays. It raises
        `ValueError` for a request that the file does not take.

    Raises:
        ValueError: If there is no such file.
        ImportError: If the package of its runtime is missing.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return _LoadedFile(saved_model_runtime.load(path))
    if not path.is_file() or path.suffix not in _RUNTIMES:
        raise ValueError(
            "Expected the folder of a SavedModel, or a file whose name ends in "
            f"{' or '.join(_RUNTIMES)}. Received: path={str(path)!r}, which is "
            f"{'neither' if path.exists() else 'not there'}."
        )
    package, runtime = _RUNTIMES[path.suffix]
    imported(package)
    return _LoadedFile(runtime.load(path))


class _LoadedFile:
    def __init__(self, runtime):
        self._runtime = runtime
        self._signatures = [
            {name: tf.TensorSpec(*spec) for name, spec in specs.items()}
            for specs in runtime.signatures
        ]

    def __call__(self, request):
        specs = chosen_signature(request, self._signatures)
        arrays = checked_request(request, specs)
        if num_rows(arrays, specs) != 0:
            return self._runtime(arrays)
        # Runtimes fail at empty tensors, each at other operations.
        answer = self._runtime(one_row(arrays, specs))
        return {name: array[:0] for name, array in answer.items()}
