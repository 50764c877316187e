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

import numpy as np
from keras import tree

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
def new_path(path):
    """Yields a temporary path to write to, and renames it to `path` at the end.

    An exception removes everything that was written.

    Args:
        path: String or `pathlib.Path` of a file or folder that does not exist. Missing
            parents are created.

    Raises:
        FileExistsError: If `path` exists.
    """
    path = pathlib.Path(path).absolute()
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


def check_export(path, runtime, functions, samples, tolerance, batch_size=None):
    """Raises `ExportError` if an exported file and its model compute other results.

    Compares them at budgets of 1, 6 and the solver's own, at another tolerance, for
    batches of one and three samples. If the inputs allow it, the last of three samples
    is invalid; see `_compared_rows`.

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
    """
    requests = [
        (function, request)
        for function in functions
        for request in _requests(function, samples, batch_size)
    ]
    responses = _responses(path, runtime, [request for _, request in requests])
    return max(
        _checked_difference(function(*request.values()), response, request, tolerance)
        for (function, request), response in zip(requests, responses, strict=True)
    )


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
    invalid = {name: array.copy() for name, array in batches[-1].items()}
    for array in invalid.values():
        if array.dtype.kind in _INVALID:
            array[-1] = _INVALID[array.dtype.kind]
            break
    batches.append(invalid)
    if "max_iter" not in names:
        return batches
    return [
        {name: {**batch, **budget}[name] for name in names}
        for batch in batches
        for budget in _BUDGETS
    ]


def _responses(path, runtime, requests):
    with tempfile.TemporaryDirectory() as folder:
        for i, request in enumerate(requests):
            np.savez(f"{folder}/request_{i}.npz", **request)
        arguments = [runtimes.__file__, runtime.__name__, path, folder, len(requests)]
        process = subprocess.run(
            [sys.executable, "-c", _RUN_FILE, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
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


def _checked_difference(expected, response, request, tolerance):
    """Returns the largest difference of a number in a response to the model's."""
    if set(expected) != set(response):
        raise ExportError(
            "The exported file returns other tensors than the model. Expected: "
            f"{sorted(expected)}. Received: {sorted(response)}."
        )
    largest = 0.0
    expected = {name: np.asarray(tensor) for name, tensor in expected.items()}
    compared = _compared_rows(expected, request)
    for name, array in expected.items():
        array, received = array[compared], response[name][compared]
        difference = _difference(array, received)
        if not difference <= tolerance:
            budget = {key: request[key].item() for key in _BUDGETS[0] if key in request}
            raise ExportError(
                "The exported file computes other results than the model. Far from an "
                "equilibrium, results at a budget depend on rounding: train the model "
                "further, or export it with a larger `tolerance`. Expected: "
                f"`{name}` of a batch of {len(next(iter(request.values())))}, "
                f"{budget}: {_shown(array)}. Received: {_shown(received)}."
            )
        largest = max(largest, difference)
    return largest


def _compared_rows(expected, request):
    """Returns the rows of a response to compare with the model's: a slice, or all.

    If a model maps an invalid sample to finite outputs, its kernels lost the NaN:
    TensorFlow fuses a convolution and a ReLU to a kernel that maps NaN to 0. Other
    runtimes keep the NaN. Only the other samples are compared then.
    """
    is_invalid = any(
        array.dtype.kind == "f" and array.ndim and np.isnan(array[-1]).all()
        for name, array in request.items()
        if not is_initial_state(name)
    )
    # Without an equilibrium layer, a response has no status.
    saw_invalid = [
        array[-1] == DIVERGED
        for name, array in expected.items()
        if re.fullmatch(r"(.*_)?status", name)
    ] or [np.isnan(x[-1]).any() for x in expected.values() if x.dtype.kind == "f"]
    if is_invalid and not all(saw_invalid):
        return slice(-1)
    return ...


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
