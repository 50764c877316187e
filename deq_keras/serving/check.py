"""Writes an exported file only if its results equal the model's results.

`new_path` writes to a temporary path, `check_export` runs the file there in a fresh
process, and compares its responses with the model's. A file may differ by more than the
tolerance only where the model differs from itself: in batches of other sizes, and for
inputs that change in the last bit.
"""

import contextlib
import errno
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.rounding import full_float32
from deq_keras.serving import runtimes
from deq_keras.serving.signature import is_initial_state, named
from deq_keras.solvers import DIVERGED

# Random samples, and the fewest samples of a batch.
_NUM_DRAWN = 3
# The most samples of a batch, and how many of them the model answers alone.
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


@contextlib.contextmanager
def new_path(path: str | pathlib.Path, suffix: str = "") -> Iterator[pathlib.Path]:
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
    specs = named(signature)
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


class _Request(NamedTuple):
    """A request of the check, and which rows of its response must be the model's."""

    function: Any  # The `tf.function` of the model that answers it.
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

    Where a result exceeds the tolerance, the model answers the request again: samples
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
    # 2. Let the model answer them. It may fail on an invalid sample, and then the file
    #    may fail, too.
    # 3. Run the file in a fresh process, which lacks the model's code and settings.
    # 4. Compare the samples that the model answers with finite numbers.
    # 5. Where they differ, measure how far the model reproduces its own results.
    requests = [
        request
        for function in functions
        for request in _requests(function, samples, batch_size)
    ]
    answers = []
    for request in requests:
        try:
            answers.append((request, _answer(request.function, request.arrays)))
        except tf.errors.InvalidArgumentError:  # Such as an `Embedding` of NaN.
            if not request.has_invalid_row:
                raise
    responses = _responses(path, runtime, [request.arrays for request, _ in answers])
    largest, is_checked, mismatches = 0.0, False, []
    for (request, expected), response in zip(answers, responses, strict=True):
        if set(expected) != set(response):
            raise ExportError(
                "The exported file returns other tensors than the model. Expected: "
                f"{sorted(expected)}. Received: {sorted(response)}."
            )
        rows = _finite_rows(request, expected)
        is_checked |= bool(rows.any()) and not request.has_invalid_row
        exceeding = {}
        for name, array in expected.items():
            received = response[name]
            if array.shape == received.shape:
                if array.ndim and len(array) == len(rows):
                    array, received = array[rows], received[rows]
                elif not rows.all():
                    continue  # This output depends on all samples.
            difference = _difference(array, received, _scale(array))
            is_number = array.dtype.kind == "f"
            if is_number and np.isfinite(difference):
                largest = max(largest, difference)
            if difference > (tolerance if is_number else 0):
                exceeding[name] = array, received, difference
        own = _own_differences(request, expected, rows, batch_size) if exceeding else {}
        mismatches += [
            _Mismatch(name, request, *found, own[name])
            for name, found in exceeding.items()
        ]
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
            stacklevel=3,
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


def _answer(function: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
        is_compared = rows[indices]
        for name, received in _answer(request.function, arrays).items():
            array = expected[name]
            if array.ndim and len(array) == size and len(received) == len(indices):
                array, received = array[indices][is_compared], received[is_compared]
            elif len(indices) != size or not rows.all():
                continue  # This output depends on all samples.
            difference = _difference(array, received, _scale(expected[name]))
            own[name] = max(own[name], difference)
    return own


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
    elif not worst.is_number:
        reason = (
            f"{own} A `tolerance` applies only to floats. Give `samples` of real "
            "requests; if the results differ for these, export parts of the model to "
            "find the layer that the runtime computes differently."
        )
    else:
        tolerance = 1.5 * max(one.difference for one in wrong)
        reason = (
            f"{own} If this is accurate enough, export it with "
            f"`tolerance={tolerance:.1e}`; otherwise, export parts of the model to "
            "find the layer that the runtime computes differently."
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


def _scale(array: np.ndarray) -> float:
    """Returns the size of an output, to which differences are relative: 1 or more."""
    if array.dtype.kind != "f":
        return 1.0
    sizes = np.abs(array[~np.isnan(array)].astype("float64"))
    return float(np.max(sizes[sizes < _LARGEST], initial=1.0))


def _difference(expected: np.ndarray, received: np.ndarray, scale: float) -> float:
    """Returns the largest difference; infinite if shapes, NaNs or texts differ."""
    if expected.shape != received.shape:
        return np.inf
    if expected.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(expected, received) else np.inf
    if not np.array_equal(np.isnan(expected), np.isnan(received)):
        return np.inf
    known = ~np.isnan(expected)
    # LiteRT replaces infinite constants with the largest number.
    one, two = (
        np.clip(x[known].astype("float64"), -_LARGEST, _LARGEST)
        for x in (expected, received)
    )
    return float(np.max(np.abs(one - two), initial=0.0) / scale)
