"""Follows memory and CPU time over long runs, beside a plain Keras model.

Epochs of `fit`, calls of `predict`, models in one process, requests to exported files,
with changing budgets and batch sizes. Each run has a fresh process. CPU time counts all
threads of the process, so that other work on the machine changes it little. Memory is
the resident memory after garbage is collected and freed pages are returned. The control
is a plain model whose requests keep 40 MiB in all: they must appear in its growth.
"""

import ctypes
import gc
import os
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import deq_keras
from training.costs import measuring

KINDS = ("plain", "DEQ")
SUFFIXES = {"saved_model": "", "litert": ".tflite", "onnx": ".onnx"}
_X = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
_KEPT = 40 * 2**20


class _Meter:
    """Notes the CPU time of calls and, after each tenth of them, the memory."""

    def __init__(self, count, kind):
        self._count, self._is_control = count, kind == "control"
        self._seconds, self._memory, self._kept, self._logs = [], [], [], []

    def start(self):
        self._begin = time.process_time()

    def note(self, logs):
        """Ends a call, which returned the dict `logs`, and begins the next one."""
        self._seconds.append(time.process_time() - self._begin)
        if self._is_control:
            self._kept.append(np.ones(_KEPT // self._count, "uint8"))
        if len(self._seconds) % max(1, self._count // 10) == 0:
            self._memory.append(_resident())
            self._logs.append({key: float(value) for key, value in logs.items()})
        self.start()

    def result(self):
        """Returns memory and CPU time after one tenth of the calls and at the end."""
        tenth = len(self._seconds) // 10
        milliseconds = 1e3 * np.array(self._seconds)
        first, last = milliseconds[tenth : 2 * tenth], milliseconds[-tenth:]
        return {
            "MiB after a tenth": self._memory[0],
            "MiB at the end": self._memory[-1],
            "growth in %": 100 * (self._memory[-1] / self._memory[0] - 1),
            "ms in the second tenth": float(np.median(first)),
            "ms in the last tenth": float(np.median(last)),
            "more time in %": 100 * float(np.median(last) / np.median(first) - 1),
            "logs after a tenth": self._logs[0],
            "logs at the end": self._logs[-1],
        }


def _resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _model(kind, seed=0):
    keras.utils.set_random_seed(seed)
    if kind == "DEQ":
        hidden = [deq_keras.DEQ(deq_keras.layers.DenseCell(16), name="deq")]
    else:
        hidden = [keras.layers.Dense(16, "tanh") for _ in range(3)]
    inputs = keras.Input((8,), name="features")
    model = keras.Sequential([inputs, *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def _fit_epochs(kind, count):
    meter = _Meter(count, kind)

    class Note(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            meter.start()

        def on_epoch_end(self, epoch, logs=None):
            meter.note(logs)

    targets = np.sin(_X.sum(axis=1, keepdims=True))
    data = {"batch_size": 16, "epochs": count, "callbacks": [Note()], "verbose": 0}
    _model(kind).fit(_X, targets, **data)
    return meter.result()


def _predict(kind, count):
    model, meter = _model(kind), _Meter(count, kind)
    meter.start()
    for _ in range(count):
        meter.note({"mean": model.predict(_X, verbose=0).mean()})
    return meter.result()


def _build_models(kind, count, is_trained):
    meter = _Meter(count, kind)
    meter.start()
    for _ in range(count):
        model = _model(kind)
        if is_trained:
            logs = model.train_on_batch(_X, _X[:, :1], return_dict=True)
        else:
            logs = {"mean": model.predict(_X, verbose=0).mean()}
        del model
        keras.backend.clear_session()
        meter.note(logs)
    return meter.result()


def _request(kind, count, file_format):
    model, meter = _model(kind), _Meter(count, kind)
    draws = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{SUFFIXES[file_format]}"
        getattr(deq_keras.serving, f"export_{file_format}")(model, path)
        loaded = deq_keras.serving.load(path)
        meter.start()
        for _ in range(count):
            budget = {"max_iter": draws.integers(1, 31)} if kind == "DEQ" else {}
            answer = loaded(_X[: draws.integers(1, 33)], **budget)
            meter.note({"first": answer["outputs"][0, 0]})
    return meter.result()


def _compare(function, count, effort, kinds=KINDS, **arguments):
    """Returns the `_Meter.result` of each kind of model, in a fresh process each."""
    count = count if effort.seconds > 1 else 20
    return {
        kind: measuring.in_fresh_process(function, kind=kind, count=count, **arguments)
        for kind in kinds
    }


def epochs(effort):
    return _compare(_fit_epochs, 10_000, effort)


def predictions(effort):
    return _compare(_predict, 10_000, effort)


def models(effort):
    return _compare(_build_models, 1_000, effort, is_trained=False)


def trained_models(effort):
    """Returns the growth with models that trained a step; Keras keeps their graphs."""
    return _compare(_build_models, 100, effort, is_trained=True)


def requests(effort):
    return {
        file_format: _compare(_request, 100_000, effort, file_format=file_format)
        for file_format in SUFFIXES
    }


def control(effort):
    kinds = ["control"]
    return _compare(_request, 100_000, effort, kinds, file_format="saved_model")


MEASUREMENTS = {
    "epochs": epochs,
    "predictions": predictions,
    "models": models,
    "trained_models": trained_models,
    "requests": requests,
    "control": control,
}


def main(argv=None):
    return measuring.run("long_runs", __doc__, MEASUREMENTS, argv)


if __name__ == "__main__":
    main()
