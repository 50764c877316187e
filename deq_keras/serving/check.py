"""Asks an export the questions that the model was asked, in a fresh process."""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from deq_keras.serving.errors import ExportError

_BUDGETS = [
    {"max_iter": np.array(max_iter, "int64"), "tol": np.array(tol, "float32")}
    for max_iter, tol in ((1, -1), (6, -1), (0, -1), (0, 0.1))
]
# What no model can use: numbers that are none, and strings that are no text or image.
_UNUSABLE = {"f": np.nan, "O": b"\xff"}
_LARGEST = float(np.finfo("float32").max)
# Only the runtime and NumPy: nothing of this process can help the file.
_ANSWER = """
import runpy, sys
import numpy as np
runtime, path, folder = sys.argv[1:4]
answer = runpy.run_path(runtime)["load"](path)
for i in range(int(sys.argv[4])):
    with np.load(f"{folder}/request_{i}.npz", allow_pickle=True) as request:
        answered = answer(dict(request))
    np.savez(f"{folder}/answer_{i}.npz", **answered)
"""


def check_export(path, runtime, functions, samples, tolerance, batch_size=None):
    """Raises `ExportError` if an export gives other answers than the model.

    It is asked at budgets of 1, 6 and the solver's own, at another tolerance, for one
    sample and for three, the last of which is of no use where the inputs can say so.

    Args:
        path: The exported file or folder.
        runtime: Module with a function `load`, which needs nothing but the runtime.
        functions: List of `tf.function`s of named tensors, as the file has them.
        samples: Dict of arrays `(samples, ...)`.
        tolerance: Float. The largest difference of an output, relative to the largest
            output where that is more than 1. Statistics that are counts must be equal.
        batch_size: Integer, or `None` for any.

    Returns:
        The largest such difference.
    """
    requests = [
        (function, request)
        for function in functions
        for request in _requests(function, samples, batch_size)
    ]
    answers = _answers(path, runtime, [request for _, request in requests])
    return max(
        _difference(function, request, answer, tolerance)
        for (function, request), answer in zip(requests, answers, strict=True)
    )


def _requests(function, samples, batch_size):
    names = [spec.name for spec in function.input_signature]
    sent = {name: samples[name] for name in names if name in samples}
    batches = [_rows(sent, size) for size in ([batch_size] if batch_size else (1, 3))]
    batches.append(_with_one_unusable(batches[-1]))
    if "max_iter" not in names:
        return batches
    return [
        {name: {**batch, **budget}[name] for name in names}
        for batch in batches
        for budget in _BUDGETS
    ]


def _rows(samples, count):
    return {name: np.resize(x, (count, *x.shape[1:])) for name, x in samples.items()}


def _with_one_unusable(batch):
    batch = {name: array.copy() for name, array in batch.items()}
    for array in batch.values():
        if array.dtype.kind in _UNUSABLE:
            array[-1] = _UNUSABLE[array.dtype.kind]
            break
    return batch


def _answers(path, runtime, requests):
    with tempfile.TemporaryDirectory() as folder:
        for i, request in enumerate(requests):
            np.savez(f"{folder}/request_{i}.npz", **request)
        arguments = [runtime.__file__, path, folder, len(requests)]
        process = subprocess.run(
            [sys.executable, "-c", _ANSWER, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        if process.returncode:
            raise ExportError(
                "The exported file does not run in its own runtime: "
                f"{_last_line(process.stderr)}"
            )
        return [
            _read(pathlib.Path(folder, f"answer_{i}.npz")) for i in range(len(requests))
        ]


def _read(path):
    with np.load(path, allow_pickle=True) as arrays:
        return dict(arrays)


def _last_line(text):
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else "it was killed."


def _difference(function, request, answer, tolerance):
    expected = function(*request.values())
    if set(expected) != set(answer):
        raise ExportError(
            "The exported file answers with other tensors than the model. Expected: "
            f"{sorted(expected)}. Received: {sorted(answer)}."
        )
    return max(
        _checked_difference(name, np.asarray(tensor), answer[name], request, tolerance)
        for name, tensor in expected.items()
    )


def _checked_difference(name, expected, received, request, tolerance):
    if expected.shape != received.shape:
        difference, is_wrong = np.inf, True
    elif expected.dtype.kind == "f":
        difference = _largest_difference(expected, received)
        is_wrong = not difference <= tolerance
    else:
        is_wrong = not np.array_equal(expected, received)
        difference = 0.0
    if is_wrong:
        budget = {
            key: request[key].item() for key in ("max_iter", "tol") if key in request
        }
        raise ExportError(
            "The exported file gives other answers than the model. One that is far "
            "from an equilibrium at its budget answers to rounding: train it further, "
            f"or export it with a larger `tolerance`. Expected: `{name}` of a batch of "
            f"{len(next(iter(request.values())))}, {budget}: {_shown(expected)}. "
            f"Received: {_shown(received)}."
        )
    return difference


def _largest_difference(expected, received):
    if not np.array_equal(np.isnan(expected), np.isnan(received)):
        return np.inf
    known = ~np.isnan(expected)
    # LiteRT has no constants that are infinite, and takes the largest number.
    one, two = (
        np.clip(x[known].astype("float64"), -_LARGEST, _LARGEST)
        for x in (expected, received)
    )
    size = np.max(np.abs(one[np.abs(one) < _LARGEST]), initial=1.0)
    return float(np.max(np.abs(one - two), initial=0.0) / size)


def _shown(array):
    return np.array2string(array.ravel()[:8], precision=6, threshold=8)
