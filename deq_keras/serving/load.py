"""Loads exported files as functions that check their requests.

Runtimes broadcast, cast or crash on wrong inputs, so requests are checked first.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from deq_keras.serving.runtimes import LiteRTRuntime, ONNXRuntime, SavedModelRuntime
from deq_keras.serving.served_model import DEFAULTS
from deq_keras.serving.signature import is_initial_state

_RUNTIMES = {
    ".tflite": ("LiteRT", LiteRTRuntime),
    ".onnx": ("ONNX", ONNXRuntime),
}
# By NumPy's letters. bfloat16 is a void dtype, and texts are objects.
_KINDS = {
    "b": "boolean",
    **dict.fromkeys("iu", "integer"),
    **dict.fromkeys("fV", "floating-point"),
    "c": "complex",
    **dict.fromkeys("OSU", "string"),
}
# Kinds of arrays that convert to each kind of tensor. Booleans are not numbers.
_CONVERTED = {
    "boolean": ("boolean",),
    "integer": ("integer",),
    "floating-point": ("integer", "floating-point"),
    "complex": ("integer", "floating-point", "complex"),
    "string": ("string",),
}


def load(path: str | pathlib.Path) -> LoadedModel:
    """Returns an exported file as a `LoadedModel`, a function that checks requests.

    Args:
        path: String or `pathlib.Path`: a folder with a SavedModel, or a file whose name
            ends in `.tflite` or `.onnx`.

    Returns:
        A `deq_keras.serving.LoadedModel`.

    Raises:
        ValueError: If `path` does not exist or has another suffix.
        ImportError: If the package of its runtime is missing.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return LoadedModel(path, "SavedModel", SavedModelRuntime(path))
    if not path.is_file() or path.suffix not in _RUNTIMES:
        raise ValueError(
            "Expected the folder of a SavedModel, or a file whose name ends in "
            f"{' or '.join(_RUNTIMES)}. Received: path={str(path)!r}, which is "
            f"{'neither' if path.exists() else 'not there'}."
        )
    file_format, runtime = _RUNTIMES[path.suffix]
    return LoadedModel(path, file_format, runtime(path))


class LoadedModel:
    """An exported file as a function from requests to responses, made by `load`.

    The function checks each request before the runtime sees it: names, ranks, static
    dimensions, kinds of dtypes, and that all inputs and initial states have the same
    number of rows. It converts numbers of another width. A request without samples
    returns a response without rows. Threads may share the function; LiteRT processes
    one request at a time. Files of all formats take the same requests.

    Attributes:
        format: String. `"SavedModel"`, `"LiteRT"` or `"ONNX"`.
        inputs: Dict from the names of the inputs to their `tf.TensorSpec`s.
        options: Dict from the names that a request may omit to their
            `tf.TensorSpec`s: `max_iter` (defaults to the budget of the solvers), `tol`
            (defaults to their tolerance) and, in a file with warm starts, initial
            states (default to the model's own).
        outputs: List of the names of the outputs. A SavedModel returns equilibria only
            for a request with initial states.
        solvers: Dict from the names of the equilibrium layers to a dict of their
            `max_iter` and `tol`.
        max_iter_limit: Positive integer, the largest `max_iter` of a request, or `None`
            without an equilibrium layer.
        metadata: Dict that was given to the export.

    Call arguments:
        request: The only input of the model, an array; or a dict of arrays by name,
            whose keys may be nested like the model's.
        **named: Further arrays by name, such as `max_iter=4`. `None` selects the
            default.

    Returns:
        Dict of arrays by the names of the outputs, in their order: outputs,
        evaluations, residual, status and equilibria.

    Raises:
        ValueError: If the file does not accept the request.

    Example:

    >>> import tempfile
    >>> features = keras.Input((3,), name="features")
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Model(features, deq(features))
    >>> path = f"{tempfile.mkdtemp()}/model.tflite"
    >>> difference = deq_keras.serving.export_litert(model, path)
    >>> loaded = deq_keras.serving.load(path)
    >>> loaded.inputs
    {'features': TensorSpec(shape=(None, 3), dtype=tf.float32, name='features')}
    >>> loaded(np.ones((2, 3)), max_iter=2, tol=0.0)["evaluations"]
    array([2, 2], dtype=int32)
    """

    def __init__(self, path: pathlib.Path, file_format: str, runtime: Any) -> None:
        self.path = path
        self.format = file_format
        self._runtime = runtime
        self._signatures = [
            {name: tf.TensorSpec(*spec, name=name) for name, spec in specs.items()}
            for specs in runtime.signatures
        ]
        specs = {name: s for specs in self._signatures for name, s in specs.items()}
        self.inputs = {
            name: specs[name]
            for name in dict.fromkeys([*runtime.metadata.get("inputs", ()), *specs])
            if not _is_option(specs[name]) and all(name in s for s in self._signatures)
        }
        options = dict.fromkeys(name for name in [*DEFAULTS, *specs] if name in specs)
        self.options = {n: specs[n] for n in options if n not in self.inputs}
        self.outputs = runtime.metadata.get("outputs", runtime.outputs)
        self.solvers = runtime.metadata.get("solvers", {})
        self.max_iter_limit = runtime.metadata.get("max_iter_limit")
        self.metadata = runtime.metadata.get("metadata", {})

    def __repr__(self) -> str:
        options = []
        for name, spec in self.options.items():
            if name not in DEFAULTS:
                options.append(_describe(spec))
                continue
            # The solvers' own numbers: one, or one for each layer.
            own = {layer: solver[name] for layer, solver in self.solvers.items()}
            text = f"{name}={next(iter(own.values()), None)}"
            if len(set(own.values())) > 1:
                text = " ".join([name, *(f"{n}={value}" for n, value in own.items())])
            is_limited = name == "max_iter" and self.max_iter_limit is not None
            text += f" (at most {self.max_iter_limit})" if is_limited else ""
            options.append(text)
        return (
            f"<LoadedModel {str(self.path)!r}, {self.format}\n"
            f"  inputs: {', '.join(map(_describe, self.inputs.values()))}\n"
            f"  options: {', '.join(options) or 'none'}\n"
            f"  outputs: {', '.join(self.outputs)}>"
        )

    def __call__(self, request: Any = None, /, **named: Any) -> dict[str, np.ndarray]:
        # 1. Name the arrays. An option that is `None` is absent.
        if request is None:
            request = {}
        elif not isinstance(request, dict):
            if len(self.inputs) != 1:
                raise ValueError(
                    "Give the inputs of this file by name, as keywords or in a dict. "
                    f"Expected: {', '.join(self.inputs)}. Received: one value of type "
                    f"{type(request).__name__}."
                )
            request = dict.fromkeys(self.inputs, request)
        request, named = dict(_flat(request)), dict(_flat(named))
        if twice := set(request) & set(named):
            raise ValueError(
                f"Give each input once. Received: {', '.join(sorted(twice))} twice."
            )
        request = {
            name: value
            for name, value in {**request, **named}.items()
            if value is not None or name not in self.options
        }
        # 2. Choose the signature with the fewest further inputs. One without a budget
        #    returns no statistics.
        accepted = [
            specs
            for specs in self._signatures
            if set(request) <= set(specs)
            and all(name in request or _is_option(specs[name]) for name in specs)
        ]
        if not accepted:
            options = f"; optional: {', '.join(self.options)}" if self.options else ""
            raise ValueError(
                "The names of a request must be names of inputs of the file. Expected: "
                f"{', '.join(self.inputs)}{options}. "
                f"Received: {', '.join(sorted(request)) or 'none'}."
            )
        with_statistics = [specs for specs in accepted if "max_iter" in specs]
        specs = min(with_statistics or accepted, key=len)
        # 3. Check the arrays.
        arrays = {name: _as_array(name, request[name], specs[name]) for name in request}
        limit, max_iter = self.max_iter_limit, arrays.get("max_iter", 0)
        if limit is not None and max_iter > limit:
            raise ValueError(
                f"`max_iter` must be at most {limit}, to which this file was exported. "
                f"Export it with `max_iter_limit={max_iter}`. Received: "
                f"max_iter={max_iter}."
            )
        # An open first axis is the batch axis; a file may have a fixed batch instead.
        batched = [
            name
            for name in arrays
            if specs[name].shape.rank and specs[name].shape[0] is None
        ]
        rows = {name: len(arrays[name]) for name in batched}
        if len(set(rows.values())) > 1:
            raise ValueError(
                "All inputs and initial states of a request must have the same number "
                f"of rows, one for each sample. Received: {rows}."
            )
        is_empty = 0 in rows.values()
        if is_empty:
            # Runtimes fail on empty tensors, each in other operations: send one sample.
            for name in batched:
                row = (1, *arrays[name].shape[1:])
                empty = b"" if arrays[name].dtype.kind == "O" else 0
                arrays[name] = np.full(row, empty, arrays[name].dtype)
        num_rows = max(1, *rows.values()) if rows else 1
        # 4. Add the defaults. A non-finite state selects the model's own.
        for name, spec in specs.items():
            if name not in arrays:
                default = DEFAULTS.get(name, np.nan)
                sizes = [num_rows if size is None else size for size in spec.shape]
                arrays[name] = np.full(sizes, default, spec.dtype.as_numpy_dtype)
        response = self._runtime({name: arrays[name] for name in specs})
        names = [name for name in self.outputs if name in response]
        return {
            name: response[name][:0] if is_empty else response[name] for name in names
        }


def _flat(request: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in request.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", value


def _is_option(spec: tf.TensorSpec) -> bool:
    """Whether a request may omit an input: its default has a known shape."""
    is_known = spec.shape.rank is not None and None not in spec.shape[1:]
    is_state = is_initial_state(spec.name) and spec.dtype.is_floating
    return spec.name in DEFAULTS or (is_state and is_known)


def _as_array(name: str, value: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Returns a value as an array of the shape and dtype that the file takes."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array, or lists of equal lengths. "
            f"Received: {name} of type {type(value).__name__} ({error})."
        ) from error
    shown = f"={array.item()!r}" if array.ndim == 0 else f" of shape {array.shape}"
    shown = f"{name}{shown} of dtype {array.dtype}"
    numpy_dtype = np.dtype(spec.dtype.as_numpy_dtype)
    kind, kinds = _KINDS.get(array.dtype.kind), _CONVERTED[_KINDS[numpy_dtype.kind]]
    if kind not in kinds or array.dtype.type is np.void:  # Raw bytes are refused.
        raise ValueError(
            f"`{name}` must have a dtype of kind {' or '.join(kinds)}, which is sent "
            f"as {spec.dtype.name}. Received: {shown}."
        )
    if not spec.shape.is_compatible_with(array.shape):
        raise ValueError(
            f"`{name}` must have the shape {_shape(spec.shape)}. Received: {shown}."
        )
    if kind == "string":
        return np.asarray(array, object)
    with np.errstate(over="ignore"):  # An overflow is infinite: its sample fails.
        result = np.asarray(array, numpy_dtype, order="C")
    if spec.dtype.is_integer and not np.array_equal(result, array):
        raise ValueError(
            f"`{name}` must have values from {spec.dtype.min} to {spec.dtype.max}. "
            f"Received: {name} with values from {array.min()} to {array.max()}."
        )
    if name == "tol" and not np.isfinite(result).all():
        raise ValueError(
            "`tol` must be a finite number; a negative one selects the tolerance of "
            f"the solvers. Received: tol={array.item()!r}."
        )
    return result


def _describe(spec: tf.TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype.name} {_shape(spec.shape)}"


def _shape(shape: tf.TensorShape) -> str:
    if shape.rank is None:
        return "(batch, ...)"
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
