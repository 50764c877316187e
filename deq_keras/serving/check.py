"""Writes an exported file only if its results equal the model's results.

A file may differ by more than the tolerance only where the model differs from itself:
in batches of other sizes, and for inputs that change in the last bit.
"""

import errno
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_positive
from deq_keras.core.rounding import full_float32
from deq_keras.serving import runtimes
from deq_keras.serving.signature import input_specs, is_initial_state
from deq_keras.solvers import DIVERGED

# Random samples, and the fewest samples of a batch.
_NUM_DRAWN = 3
# The most samples of a batch, and how many of them are also requests of their own.
_NUM_SAMPLES, _NUM_ALONE = 32, 8
# A runtime rounds each operation in its own way, and a batch of another size only some.
# Reconstructions of `HalfQuadraticCell` differed 3.5 times as much.
_ROUNDING = 10.0
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


def export(
    served: Any,
    path: str | pathlib.Path,
    suffix: str,
    runtime: type,
    samples: Any,
    tolerance: float,
    write: Callable[[pathlib.Path], list[Any]],
    batch_size: int | None = None,
) -> float:
    """Writes a file to a temporary path, checks it there, and renames it to `path`.

    An exception removes everything that was written.

    Args:
        served: The `ServedModel`.
        path: String or `pathlib.Path` of a file or folder that does not exist. Missing
            parents are created.
        suffix: String. What the name must end in, because `load` tells formats apart
            by it; `""` for any name.
        runtime: Class from `deq_keras.serving.runtimes`.
        samples: See `check_samples`.
        tolerance: See `check_export`.
        write: Function that writes the file to a path, and returns the signatures of
            the file, a list of `tf.function`s of named tensors.
        batch_size: Positive integer, or `None` for any.

    Returns:
        The largest difference of a floating-point output.

    Raises:
        ValueError: If the name does not end in `suffix`.
        FileExistsError: If `path` exists.
    """
    tolerance = check_positive("tolerance", tolerance)
    path = pathlib.Path(path).absolute()
    if not path.name.endswith(suffix):
        raise ValueError(
            f"The name of this file must end in {suffix}, by which `load` finds the "
            f"runtime. Received: path={str(path)!r}."
        )
    _check_free(path)
    samples = check_samples(served.signature, samples)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.", dir=path.parent
    ) as folder:
        temporary = pathlib.Path(folder, path.name)
        functions = write(temporary)
        samples |= served.initial_states(samples)
        difference = check_export(
            temporary, runtime, functions, samples, tolerance, batch_size
        )
        _check_free(path)
        os.replace(temporary, path)
    return difference


def _check_free(path: pathlib.Path) -> None:
    if path.exists():
        message = "There is something already. Choose another path"
        raise FileExistsError(errno.EEXIST, message, str(path))


def check_samples(signature: Any, samples: Any) -> dict[str, np.ndarray]:
    """Returns samples to check an export with, as a dict of arrays.

    Args:
        signature: Nest of `tf.TensorSpec`s of a request.
        samples: Nest of arrays with the same structure, `(samples, ...)`. `None` draws
            random samples.

    Raises:
        ValueError: If samples do not fit the signature, or cannot be drawn.
    """
    specs = input_specs(signature)
    if samples is None:
        generator = np.random.default_rng(0)
        drawn: dict[str, np.ndarray] = {}
        for name, spec in specs.items():
            shape = (_NUM_DRAWN, *spec.shape[1:])
            if None in shape or not (spec.dtype.is_floating or spec.dtype.is_integer):
                raise ValueError(
                    "Give `samples`, with which the exported file is checked: random "
                    "samples are not supported for this input. Received: samples=None,"
                    f" {name} of shape {spec.shape} and dtype {spec.dtype.name}."
                )
            array: np.ndarray
            if spec.dtype.is_floating:
                array = generator.normal(size=shape)
            else:  # Small non-negative numbers are valid as ids and as pixels.
                array = generator.integers(0, 2, size=shape)
            drawn[name] = array.astype(spec.dtype.as_numpy_dtype)
        return drawn
    try:
        tree.assert_same_structure(signature, samples)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`samples` must have the structure of a request to the model. Expected: "
            f"{signature}. Received: {type(samples).__name__} ({error})."
        ) from error
    arrays = {}
    for (name, spec), leaf in zip(specs.items(), tree.flatten(samples), strict=True):
        array, shape = np.asarray(leaf), spec.shape
        if not len(array) or not shape.is_compatible_with((shape[0], *array.shape[1:])):
            raise ValueError(
                "`samples` must have the shapes of a request to the model, and at "
                f"least one sample. Expected: {name} of shape {shape}. "
                f"Received: shape {array.shape}."
            )
        arrays[name] = array.astype(spec.dtype.as_numpy_dtype)
    return arrays


class _Request(NamedTuple):
    """A request of the check, and which rows of its response must be the model's."""

    function: Any  # The `tf.function` of the model.
    arrays: dict[str, np.ndarray]
    has_invalid_row: bool  # Whether the last sample is invalid.


class _Mismatch(NamedTuple):
    """An output of a response that exceeds the tolerance."""

    name: str
    request: _Request
    expected: np.ndarray
    received: np.ndarray
    difference: float
    own: float  # The difference of the model from itself.

    @property
    def is_number(self) -> bool:
        """Whether the output is a float, to which the tolerance applies."""
        return self.expected.dtype.kind == "f"


def check_export(
    path: pathlib.Path,
    runtime: type,
    functions: list[Any],
    samples: dict[str, np.ndarray],
    tolerance: float,
    batch_size: int | None = None,
) -> float:
    """Raises `ExportError` if an exported file and its model compute other results.

    Compares them at budgets of 1, 6 and the solver's own, at another tolerance, for one
    sample and for a batch of up to 32. If the inputs allow it, a second batch ends with
    an invalid sample, and its first initial state is NaN, which selects the model's
    own.

    Where a result exceeds the tolerance, the model is called again: with samples
    alone or in another batch, and inputs that change in the last bit. If it differs
    from itself about as much, its results depend on rounding, and the file is as good
    as the model; this function then warns. Otherwise the file is wrong.

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
        The largest difference of a floating-point output.

    Raises:
        ExportError: If the file does not run, or its results differ.
        ValueError: If the model maps no sample to finite results.
    """
    # 1. Make requests: sizes of batches, budgets, and one batch with an invalid sample.
    # 2. Call the model. It may fail on an invalid sample, and then the file
    #    may fail, too.
    # 3. Run the file in a fresh process, which lacks the model's code and settings.
    # 4. Compare the samples for which the model returns finite numbers.
    # 5. Where they differ, measure how far the model reproduces its own results.
    requests = [
        request
        for function in functions
        for request in _requests(function, samples, batch_size)
    ]
    results: list[tuple[_Request, dict[str, np.ndarray]]] = []
    for request in requests:
        try:
            results.append((request, _run_model(request.function, request.arrays)))
        except tf.errors.InvalidArgumentError:  # Such as an `Embedding` of NaN.
            if not request.has_invalid_row:
                raise
    responses = _responses(path, runtime, [request.arrays for request, _ in results])
    largest, is_checked, mismatches = 0.0, False, []
    for (request, expected), response in zip(results, responses, strict=True):
        if set(expected) != set(response):
            raise ExportError(
                "The exported file returns other tensors than the model. Expected: "
                f"{sorted(expected)}. Received: {sorted(response)}."
            )
        rows = _finite_rows(request, expected)
        is_checked |= bool(rows.any()) and not request.has_invalid_row
        own: dict[str, float] = {}
        for name, array, received, difference in _compare(
            expected, response, rows, np.arange(len(rows))
        ):
            is_number = array.dtype.kind == "f"
            if is_number and np.isfinite(difference):
                largest = max(largest, difference)
            if difference > (tolerance if is_number else 0):
                own = own or _own_differences(request, expected, rows, batch_size)
                mismatches.append(
                    _Mismatch(name, request, array, received, difference, own[name])
                )
    if not is_checked:
        raise ValueError(
            "The exported file cannot be checked, because the model returns NaN for "
            "all samples. Give `samples`, inputs for which its outputs are finite. "
            f"Received: samples of {', '.join(samples)}."
        )
    wrong = [one for one in mismatches if not one.difference <= _ROUNDING * one.own]
    if wrong:
        raise ExportError(_error(wrong))
    if mismatches:
        worst = max(mismatches, key=lambda one: (one.is_number, one.difference))
        warnings.warn(
            f"The exported file differs from the model by {worst.difference:.1e} in "
            f"`{worst.name}`, because results of the model depend on rounding: it "
            f"differs from itself by {worst.own:.1e} between a sample alone and in a "
            "batch, or if its inputs change in the last bit. The file is as accurate "
            "as the model.",
            stacklevel=4,
        )
    return largest


def _requests(
    function: Any, samples: dict[str, np.ndarray], batch_size: int | None
) -> list[_Request]:
    names = [spec.name for spec in function.input_signature]
    count = min(max(map(len, samples.values())), _NUM_SAMPLES)
    batches = [
        {
            name: np.resize(samples[name], (size, *samples[name].shape[1:]))
            for name in names
            if name in samples
        }
        for size in ([batch_size] if batch_size else (1, max(count, _NUM_DRAWN)))
    ]
    requests = [(batch, False) for batch in batches]
    invalid = {name: array.copy() for name, array in batches[-1].items()}
    inputs = [name for name in invalid if not is_initial_state(name)]
    invalid_inputs = [name for name in inputs if invalid[name].dtype.kind in _INVALID]
    for name in invalid_inputs[:1]:
        invalid[name][-1] = _INVALID[invalid[name].dtype.kind]
    for name in invalid.keys() - set(inputs):
        invalid[name][0] = np.nan
    requests.append((invalid, bool(invalid_inputs)))
    budgets = _BUDGETS if "max_iter" in names else [{}]
    return [
        _Request(function, {name: {**batch, **budget}[name] for name in names}, mark)
        for batch, mark in requests
        for budget in budgets
    ]


def _run_model(function: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the model's response to a request."""
    with full_float32():
        response = function(*arrays.values())
    return {name: np.asarray(tensor) for name, tensor in response.items()}


def _responses(
    path: pathlib.Path, runtime: type, requests: list[dict[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """Returns the file's responses to requests, from a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        for i, request in enumerate(requests):
            np.savez(f"{folder}/request_{i}.npz", **request)  # type: ignore[arg-type]
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


def _finite_rows(request: _Request, expected: dict[str, np.ndarray]) -> np.ndarray:
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


def _own_differences(
    request: _Request,
    expected: dict[str, np.ndarray],
    rows: np.ndarray,
    batch_size: int | None,
) -> dict[str, float]:
    """Returns how far the model differs from its own response, for each output.

    Args:
        request: The `_Request`.
        expected: Dict of arrays, the response of the model.
        rows: Boolean array `(batch,)`, the samples to compare.
        batch_size: Positive integer if the function accepts only batches of this size.
    """
    size, random = len(rows), np.random.default_rng(0)
    batched = [name for name, x in request.arrays.items() if x.ndim]
    others = []  # Pairs of a request, and the samples that are its rows.
    for _ in range(2):
        arrays = dict(request.arrays)
        for name in batched:
            if arrays[name].dtype.kind == "f":
                direction = random.choice([-np.inf, np.inf], arrays[name].shape)
                direction = direction.astype(arrays[name].dtype)
                arrays[name] = np.nextafter(arrays[name], direction)
        others.append((arrays, np.arange(size)))
    if batch_size is None:
        for i in np.flatnonzero(rows)[:_NUM_ALONE]:
            indices = np.array([i] if size > 1 else [i] * _NUM_DRAWN)
            alone = {name: request.arrays[name][indices] for name in batched}
            others.append(({**request.arrays, **alone}, indices))
    own = dict.fromkeys(expected, 0.0)
    for arrays, indices in others:
        response = _run_model(request.function, arrays)
        for name, *_, difference in _compare(expected, response, rows, indices):
            own[name] = max(own[name], difference)
    return own


def _compare(
    expected: dict[str, np.ndarray],
    response: dict[str, np.ndarray],
    rows: np.ndarray,
    indices: np.ndarray,
) -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    """Yields the name of each output, both arrays and their largest difference.

    Differences are relative to the largest number of the output if that exceeds 1, and
    infinite if shapes, NaNs or texts differ.

    Args:
        expected: Dict of arrays of a batch.
        response: Dict of arrays of samples of this batch.
        rows: Boolean array `(batch,)`, the samples to compare.
        indices: Integer array `(samples,)`, the samples of `response`.
    """
    is_whole = len(indices) == len(rows)
    for name, array in expected.items():
        whole, received = array, response[name]
        has_rows = array.ndim and len(array) == len(rows)
        if has_rows and (is_whole or len(received) == len(indices)):
            whole, array = array[rows], array[indices]
            if array.shape == received.shape:
                array, received = array[rows[indices]], received[rows[indices]]
        elif not is_whole or not rows.all():
            continue  # This output depends on all samples.
        difference = np.inf
        if array.shape != received.shape:
            pass
        elif array.dtype.kind not in "fiub":
            difference = 0.0 if np.array_equal(array, received) else np.inf
        elif np.array_equal(np.isnan(array), np.isnan(received)):
            # LiteRT replaces infinite constants with the largest number.
            one, two = (
                np.clip(x[~np.isnan(array)].astype("float64"), -_LARGEST, _LARGEST)
                for x in (array, received)
            )
            difference = float(np.max(np.abs(one - two), initial=0.0))
            if whole.dtype.kind == "f":
                sizes = np.abs(whole[~np.isnan(whole)].astype("float64"))
                difference /= np.max(sizes[sizes < _LARGEST], initial=1.0)
        yield name, array, received, difference


def _error(wrong: list[_Mismatch]) -> str:
    """Returns the message for results that rounding does not explain."""
    # An integer, a shape or a NaN needs another remedy than a larger tolerance.
    valid = [one for one in wrong if not one.request.has_invalid_row]
    worst = max(valid or wrong, key=lambda one: (not one.is_number, one.difference))
    own = (
        f"The model differs from itself by {worst.own:.1e} between a sample alone and "
        "in a batch, or if its inputs change in the last bit, and the file from the "
        f"model by {worst.difference:.1e}."
    )
    if worst.expected.shape != worst.received.shape:
        reason = "Its shape differs."
    elif worst.request.has_invalid_row:
        reason = (
            "In this request, an invalid sample (NaN, or bytes that are no text) "
            "changes the results of other samples. Look for a layer that mixes samples."
        )
    elif worst.is_number and not np.isfinite(worst.difference):
        reason = (
            "It is NaN in only one of them: an operation loses a NaN or an infinity in "
            "TensorFlow. Give `samples` for which all layers are finite."
        )
    else:
        remedy = (
            "A `tolerance` applies only to floats. Give `samples` of real requests; if "
            "the results differ for these, "
        )
        if worst.is_number:
            tolerance = 1.5 * max(one.difference for one in wrong)
            remedy = (
                "If this is accurate enough, export it with "
                f"`tolerance={tolerance:.1e}`; otherwise, "
            )
        reason = (
            f"{own} {remedy}export parts of the model to find the layer that the "
            "runtime computes differently."
        )
    arrays = worst.request.arrays
    budget = {key: arrays[key].item() for key in _BUDGETS[0] if key in arrays}
    expected, received = (
        np.array2string(array.ravel()[:8], precision=6, threshold=8)
        for array in (worst.expected, worst.received)
    )
    size = len(next(iter(arrays.values())))
    return (
        f"The exported file computes other results than the model. {reason} Expected: "
        f"`{worst.name}` of a batch of {size}, {budget}: {expected}. Received: "
        f"{received}."
    )
