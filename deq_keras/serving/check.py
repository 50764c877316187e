"""Asks an export the questions that the model was asked, in a fresh process."""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from deq_keras.serving.comparison import checked_difference
from deq_keras.serving.errors import ExportError

_BUDGETS = [
    {"max_iter": np.array(max_iter, "int64"), "tol": np.array(tol, "float32")}
    for max_iter, tol in ((1, -1), (6, -1), (0, -1), (0, 0.1))
]
# What no model can use: numbers that are none, and strings that are no text or image.
_UNUSABLE = {"f": np.nan, "O": b"\xff"}
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
        checked_difference(function(*request.values()), answer, request, tolerance)
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
                f"{_end(process.stderr)}"
            )
        return [
            _read(pathlib.Path(folder, f"answer_{i}.npz")) for i in range(len(requests))
        ]


def _read(path):
    with np.load(path, allow_pickle=True) as arrays:
        return dict(arrays)


def _end(text):
    return " ".join(text.split())[-800:] or "it was killed."
