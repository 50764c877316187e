"""Load exported files as functions that check their requests.

Runtimes broadcast, cast and crash, so each request is checked before one sees it.
"""

import pathlib

import numpy as np
import tensorflow as tf

from deq_keras.serving.runtimes import LiteRTRuntime, ONNXRuntime, SavedModelRuntime

_RUNTIMES = {".tflite": LiteRTRuntime, ".onnx": ONNXRuntime}
# Kinds of arrays that convert to each kind of tensor. Booleans are not numbers.
_CONVERTED = {
    "boolean": ("boolean",),
    "integer": ("integer",),
    "floating-point": ("integer", "floating-point"),
    "complex": ("integer", "floating-point", "complex"),
    "string": ("string",),
}


def load(path):
    """Returns an exported file as a function from requests to responses.

    The function checks each request before the runtime sees it: names, ranks, static
    dimensions, kinds of dtypes, and that all inputs and initial states have the same
    number of rows. It converts numbers of another width. A request without samples
    returns a response without rows. Threads may share the function; LiteRT processes
    one request at a time.

    Args:
        path: String or `pathlib.Path`: a folder with a SavedModel, or a file whose name
            ends in `.tflite` or `.onnx`.

    Returns:
        Function from a dict of arrays, with the names of the file's inputs (for a
        SavedModel, the inputs of one of its signatures), to a dict of arrays. It raises
        `ValueError` for a request that the file does not accept.

    Raises:
        ValueError: If `path` does not exist or has another suffix.
        ImportError: If the package of its runtime is missing.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return _LoadedFile(SavedModelRuntime(path))
    if not path.is_file() or path.suffix not in _RUNTIMES:
        raise ValueError(
            "Expected the folder of a SavedModel, or a file whose name ends in "
            f"{' or '.join(_RUNTIMES)}. Received: path={str(path)!r}, which is "
            f"{'neither' if path.exists() else 'not there'}."
        )
    return _LoadedFile(_RUNTIMES[path.suffix](path))


class _LoadedFile:
    def __init__(self, runtime):
        self._runtime = runtime
        self._signatures = [
            {name: tf.TensorSpec(*spec) for name, spec in specs.items()}
            for specs in runtime.signatures
        ]

    def __call__(self, request):
        specs = self._chosen_signature(request)
        arrays = {name: _checked(name, request[name], specs[name]) for name in specs}
        # An open first axis is the batch axis; a file may have a fixed batch instead.
        batched = [
            name
            for name, spec in specs.items()
            if spec.shape.rank and spec.shape[0] is None
        ]
        rows = {name: len(arrays[name]) for name in batched}
        if len(set(rows.values())) > 1:
            raise ValueError(
                "All inputs and initial states of a request must have the same number "
                f"of rows, one for each sample. Received: {rows}."
            )
        if 0 not in rows.values():
            return self._runtime(arrays)
        # Runtimes fail on empty tensors, each in other operations: send one sample.
        sample = {name: _placeholder_row(arrays[name]) for name in batched}
        response = self._runtime({**arrays, **sample})
        return {name: array[:0] for name, array in response.items()}

    def _chosen_signature(self, request):
        for specs in self._signatures:
            if set(specs) == set(request):
                return specs
        expected = dict.fromkeys(
            f"[{', '.join(sorted(specs))}]" for specs in self._signatures
        )
        raise ValueError(
            f"No signature takes these inputs. Expected: {' or '.join(expected)}. "
            f"Received: [{', '.join(sorted(request))}]."
        )


def _placeholder_row(array):
    """Returns one row of zeros or empty strings."""
    empty = b"" if array.dtype.kind == "O" else 0
    return np.full((1, *array.shape[1:]), empty, array.dtype)


def _checked(name, value, spec):
    """Returns a value as an array of the shape and dtype that the file takes."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array, or lists of equal lengths. "
            f"Received: {name} of type {type(value).__name__} ({error})."
        ) from error
    kind = _kind(array.dtype)
    if kind not in _CONVERTED[_kind(spec.dtype)]:
        kinds = " or ".join(_CONVERTED[_kind(spec.dtype)])
        raise ValueError(
            f"`{name}` must have a dtype of kind {kinds}, which is sent as "
            f"{spec.dtype.name}. Received: {_shown(name, array)}."
        )
    if not spec.shape.is_compatible_with(array.shape):
        raise ValueError(
            f"`{name}` must have the shape {_shape(spec.shape)}. "
            f"Received: {_shown(name, array)}."
        )
    if kind == "string":
        return np.asarray(array, object)
    return _converted(name, array, spec.dtype)


def _converted(name, array, dtype):
    with np.errstate(over="ignore"):  # An overflow is infinite: its sample fails.
        result = np.asarray(array, dtype.as_numpy_dtype, order="C")
    if dtype.is_integer and not np.array_equal(result, array):
        raise ValueError(
            f"`{name}` must have values from {dtype.min} to {dtype.max}. Received: "
            f"{name} with values from {array.min()} to {array.max()}."
        )
    if name == "tol" and not np.isfinite(result).all():
        raise ValueError(
            "`tol` must be a finite number; a negative one selects the tolerance of "
            f"the solvers. Received: tol={array.item()!r}."
        )
    return result


def _kind(dtype):
    """Returns the kind of a NumPy or TensorFlow dtype, or `None`."""
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError:
        return None
    return {
        dtype.is_bool: "boolean",
        dtype.is_integer: "integer",
        dtype.is_floating: "floating-point",
        dtype.is_complex: "complex",
        dtype == tf.string: "string",
    }.get(True)


def _shown(name, array):
    value = f"={array.item()!r}" if array.ndim == 0 else f" of shape {array.shape}"
    return f"{name}{value} of dtype {array.dtype}"


def _shape(shape):
    if shape.rank is None:
        return "(batch, ...)"
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
