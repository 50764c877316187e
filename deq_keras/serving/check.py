"""Writes an exported file only if its results equal the model's results.

`new_path` writes to a temporary path, `check_export` runs the file there in a fresh
process, and compares its responses with the model's.
"""

import contextlib
import errno
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.rounding import full_float32
from deq_keras.serving import runtimes
from deq_keras.serving.signature import is_initial_state, named
from deq_keras.solvers import DIVERGED

_NUM_DRAWN = 3
_BUDGETS = [
    {"max_iter": np.array(max_iter, "int64"), "tol": np.array(tol, "float32")}
    for max_iter, tol in ((1, -1), (6, -1), (0, -1), (0, 0.1))
]
# Invalid for every model: NaN, and bytes that are neither a text nor an image.
_INVALID = {"f": np.nan, "O": b"\xff"}
_LARGEST = float(np.finfo("float32").max)
# The process imports only the runtime and NumPy, like a client without this package.
_RUN_FILE = """
import runpy, sys
import numpy as np
module, runtime, path, folder, count = sys.argv[1:]
run = runpy.run_path(module)[runtime](path)
for i in range(int(count)):
    with np.load(f"{folder}/request_{i}.npz", allow_pickle=True) as request:
        response = run(dict(request))
    np.savez(f"{folder}/response_{i}.npz", **response)
"""


class ExportError(RuntimeError):
    """Raised if a model cannot be exported, or if its export computes other outputs.

    The message explains the reason and the remedy. No file is left behind.
    """


@contextlib.contextmanager
def new_path(path, suffix=""):
    """Yields a temporary path to write to, and renames it to `path` at the end.

    An exception removes everything that was written.

    Args:
        path: String or `pathlib.Path` of a file or folder that does not exist. Missing
            parents are created.
        suffix: String. What the name must end in, because `load` tells formats apart
            by it. Defaults to `""`, any name.

    Raises:
        ValueError: If the name does not end in `suffix`.
        FileExistsError: If `path` exists.
    """
    path = pathlib.Path(path).absolute()
    if not path.name.endswith(suffix):
        raise ValueError(
            f"The name of this file must end in {suffix}, by which `load` finds the "
            f"runtime. Received: path={str(path)!r}."
        )
    _check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", dir=path.parent
    ) as folder:
        temporary = pathlib.Path(folder, path.name)
        yield temporary
        _check_free(path)
        os.replace(temporary, path)


def _check_free(path):
    if path.exists():
        message = "There is something already. Choose another path"
        raise FileExistsError(errno.EEXIST, message, str(path))


def checked_samples(signature, samples):
    """Returns samples to check an export with, as a dict of arrays.

    Args:
        signature: Nest of `tf.TensorSpec`s of a request.
        samples: Nest of arrays with the same structure, `(samples, ...)`. `None` draws
            random samples.

    Raises:
        ValueError: If samples do not fit the signature, or cannot be drawn.
    """
    specs = named(signature)
    if samples is None:
        generator = np.random.default_rng(0)
        return {name: _drawn(name, spec, generator) for name, spec in specs.items()}
    try:
        tree.assert_same_structure(signature, samples)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`samples` must have the structure of a request to the model. Expected: "
            f"{signature}. Received: {type(samples).__name__} ({error})."
        ) from error
    arrays = dict(zip(specs, map(np.asarray, tree.flatten(samples)), strict=True))
    for name, array in arrays.items():
        shape = specs[name].shape
        if not len(array) or not shape.is_compatible_with((shape[0], *array.shape[1:])):
            raise ValueError(
                "`samples` must have the shapes of a request to the model, and at "
                f"least one sample. Expected: {name} of shape {shape}. "
                f"Received: shape {array.shape}."
            )
    return {
        name: array.astype(specs[name].dtype.as_numpy_dtype)
        for name, array in arrays.items()
    }


def _drawn(name, spec, generator):
    shape = (_NUM_DRAWN, *spec.shape[1:])
    if None in shape or not (spec.dtype.is_floating or spec.dtype.is_integer):
        raise ValueError(
            "Give `samples`, with which the exported file is checked: random samples "
            "are not supported for this input. Received: samples=None, "
            f"{name} of shape {spec.shape} and dtype {spec.dtype.name}."
        )
    if spec.dtype.is_floating:
        array = generator.normal(size=shape)
    else:  # Small non-negative numbers are valid as ids and as pixels.
        array = generator.integers(0, 2, size=shape)
    return array.astype(spec.dtype.as_numpy_dtype)


class _Request(NamedTuple):
    """A request of the check, and which rows of its response must be the model's."""

    function: Any  # The `tf.function` of the model that answers it.
    arrays: dict[str, np.ndarray]
    has_invalid_row: bool  # Whether the last sample is invalid.


def check_export(path, runtime, functions, samples, tolerance, batch_size=None):
    """Raises `ExportError` if an exported file and its model compute other results.

    Compares them at budgets of 1, 6 and the solver's own, at another tolerance, for
    batches of one and three samples. If the inputs allow it, a second batch of three
    ends with an invalid sample, and its first initial state is NaN, which selects the
    model's own.

    The file promises that an invalid sample does not affect the other samples. It
    promises nothing about the invalid sample: whether a kernel returns NaN for NaN or
    a number (ReLU, softplus, the gates of an LSTM) differs between runtimes. The check
    therefore compares only samples for which the model returns finite results.

    Args:
        path: The exported file or folder.
        runtime: Class from `deq_keras.serving.runtimes`.
        functions: List of `tf.function`s of named tensors, the signatures of the file.
        samples: Dict of arrays `(samples, ...)`: inputs and initial states.
        tolerance: Positive float. The largest difference of an output, relative to the
            largest output if that exceeds 1. Integer statistics must be equal.
        batch_size: Positive integer, or `None` for any.

    Returns:
        The largest difference.

    Raises:
        ExportError: If the file does not run, or its results differ.
        ValueError: If the model maps no sample to finite results.
    """
    # 1. Make requests: sizes of batches, budgets, and one batch with an invalid sample.
    # 2. Let the model answer them. It may fail on an invalid sample, and then the file
    #    may fail, too.
    # 3. Run the file in a fresh process, which lacks the model's code and settings.
    # 4. Compare the samples that the model answers with finite numbers.
    requests = [
        request
        for function in functions
        for request in _requests(function, samples, batch_size)
    ]
    answers = [answer for request in requests if (answer := _answer(request))]
    responses = _responses(path, runtime, [request.arrays for request, _ in answers])
    largest, is_checked = 0.0, False
    for (request, expected), response in zip(answers, responses, strict=True):
        rows = _finite_rows(request, expected)
        difference = _checked_difference(request, expected, response, rows, tolerance)
        largest = max(largest, difference)
        is_checked |= rows.any() and not request.has_invalid_row
    if not is_checked:
        raise ValueError(
            "The exported file cannot be checked, because the model returns NaN for "
            "all samples. Give `samples`, inputs for which its outputs are finite. "
            f"Received: samples of {', '.join(samples)}."
        )
    return largest


def _requests(function, samples, batch_size):
    names = [spec.name for spec in function.input_signature]
    batches = [
        {
            name: np.resize(samples[name], (size, *samples[name].shape[1:]))
            for name in names
            if name in samples
        }
        for size in ([batch_size] if batch_size else (1, 3))
    ]
    requests = [(batch, False) for batch in batches]
    invalid = {name: array.copy() for name, array in batches[-1].items()}
    inputs = [name for name in invalid if not is_initial_state(name)]
    kinds = [invalid[name].dtype.kind for name in inputs]
    for name, kind in zip(inputs, kinds, strict=True):
        if kind in _INVALID:
            invalid[name][-1] = _INVALID[kind]
            break
    for name in invalid.keys() - set(inputs):
        invalid[name][0] = np.nan
    requests.append((invalid, any(kind in _INVALID for kind in kinds)))
    budgets = _BUDGETS if "max_iter" in names else [{}]
    return [
        _Request(function, {name: {**batch, **budget}[name] for name in names}, mark)
        for batch, mark in requests
        for budget in budgets
    ]


def _answer(request):
    """Returns a request and the model's response, or `None` if the model fails on an
    invalid sample, such as an `Embedding` on NaN. The file may then fail as well."""
    try:
        with full_float32():
            response = request.function(*request.arrays.values())
    except tf.errors.InvalidArgumentError:
        if request.has_invalid_row:
            return None
        raise
    return request, {name: np.asarray(tensor) for name, tensor in response.items()}


def _responses(path, runtime, requests):
    with tempfile.TemporaryDirectory() as folder:
        for i, request in enumerate(requests):
            np.savez(f"{folder}/request_{i}.npz", **request)
        arguments = [runtimes.__file__, runtime.__name__, path, folder, len(requests)]
        process = subprocess.run(
            [sys.executable, "-c", _RUN_FILE, *map(str, arguments)],
            capture_output=True,
            text=True,
            # The file and the model are compared in float32, on a GPU as well.
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "NVIDIA_TF32_OVERRIDE": "0",
            },
        )
        if process.returncode:
            reason = " ".join(process.stderr.split())[-800:] or "it was killed."
            raise ExportError(
                f"The exported file does not run in its own runtime: {reason}"
            )
        responses = []
        for i in range(len(requests)):
            with np.load(f"{folder}/response_{i}.npz", allow_pickle=True) as arrays:
                responses.append(dict(arrays))
        return responses


def _finite_rows(request, expected):
    """Returns a mask of samples for which the model returns finite results."""
    size = len(next(iter(request.arrays.values())))
    is_finite = np.ones(size, bool)
    is_finite[-1] = not request.has_invalid_row
    for name, array in expected.items():
        if not array.ndim or len(array) != size:
            continue  # The output lacks a batch axis.
        if re.fullmatch(r"(.*_)?status", name):
            is_finite &= array != DIVERGED
        elif array.dtype.kind == "f":
            is_finite &= ~np.isnan(array.reshape(size, -1)).any(axis=1)
    return is_finite


def _checked_difference(request, expected, response, rows, tolerance):
    """Returns the largest difference of a number in some rows of a response.

    Args:
        request: The `_Request`.
        expected: Dict of arrays, the response of the model.
        response: Dict of arrays, the response of the file.
        rows: Boolean array `(batch,)`, the samples to compare. An output without a
            batch axis depends on all of them.
        tolerance: Positive float.
    """
    if set(expected) != set(response):
        raise ExportError(
            "The exported file returns other tensors than the model. Expected: "
            f"{sorted(expected)}. Received: {sorted(response)}."
        )
    largest = 0.0
    for name, array in expected.items():
        received = response[name]
        if array.shape == received.shape:
            if array.ndim and len(array) == len(rows):
                array, received = array[rows], received[rows]
            elif not rows.all():
                continue
        difference = _difference(array, received)
        if not difference <= tolerance:
            arrays = request.arrays
            budget = {key: arrays[key].item() for key in _BUDGETS[0] if key in arrays}
            raise ExportError(
                "The exported file computes other results than the model. "
                f"{_reason(request, array, received)} Expected: `{name}` of a batch of "
                f"{len(rows)}, {budget}: {_shown(array)}. Received: {_shown(received)}."
            )
        largest = max(largest, difference)
    return largest


def _reason(request, expected, received):
    """Returns what may explain a difference, and the remedy."""
    if expected.shape != received.shape:
        return "Its shape differs."
    if request.has_invalid_row:
        return (
            "In this request, an invalid sample (NaN, or bytes that are no text) "
            "changes the results of other samples. Look for a layer that mixes samples."
        )
    if expected.dtype.kind == "f" and np.isnan(received).any():
        return (
            "It is NaN where the model is finite: an operation loses a NaN or an "
            "infinity in TensorFlow. Give `samples` for which all layers are finite."
        )
    if "max_iter" in request.arrays:
        return (
            "Far from an equilibrium, results at a budget depend on rounding: train "
            "the model further, or export it with a larger `tolerance`."
        )
    return "If the difference is rounding, export it with a larger `tolerance`."


def _difference(expected, received):
    """Returns the relative difference; infinite if shapes, NaNs or integers differ."""
    if expected.shape != received.shape:
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, received) else np.inf
    if not np.array_equal(np.isnan(expected), np.isnan(received)):
        return np.inf
    known = ~np.isnan(expected)
    # LiteRT replaces infinite constants with the largest number.
    one, two = (
        np.clip(x[known].astype("float64"), -_LARGEST, _LARGEST)
        for x in (expected, received)
    )
    size = np.max(np.abs(one[np.abs(one) < _LARGEST]), initial=1.0)
    return float(np.max(np.abs(one - two), initial=0.0) / size)


def _shown(array):
    return np.array2string(array.ravel()[:8], precision=6, threshold=8)
