"""Epochs of a training with and without what writes event files, in turns."""

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from ... import registry
from ...config import reading as configs
from ...config import shipped
from ...runs import event_files
from ...runs.train import enter_phase


class Overhead(NamedTuple):
    """What event files cost.

    Attributes:
        median: float. Time of a step with them over that of one without; over pairs of
            neighbouring epochs. The work at the end of an epoch is shared by its steps.
        lower_quartile: float.
        upper_quartile: float.
        mean: float. That of all epochs, with the few in which curves are drawn.
        step: float. Milliseconds of a step without.
        steps: int. Of an epoch.
        pairs: int. Pairs of epochs.
    """

    median: float
    lower_quartile: float
    upper_quartile: float
    mean: float
    step: float
    steps: int
    pairs: int


def overhead(effort, config="digits/main", variant="regularized", steps=100):
    """Returns the `Overhead` of the last phase of a config's variant.

    Args:
        effort: a `timing.Effort`.
        config: name of a shipped config.
        variant: one of its variants.
        steps: int. Training steps of an epoch.
    """
    config = configs.variant(configs.load(shipped.find(config)), variant)
    job_class = registry.implementation(config.experiment)
    job = job_class(config, job_class.load_data(config.data, None))
    model, optimizer, spans = job.build()
    enter_phase(job, model, spans[-1], optimizer)
    with tempfile.TemporaryDirectory() as folder:
        writers = event_files.callbacks(job, model, spans[-1], Path(folder))
        turns = _Turns(writers, effort)
        arguments = job.fit_arguments(range(1_000_000))
        del arguments["validation_data"]
        model.fit(
            **{**arguments, "steps_per_epoch": steps},
            epochs=1_000_000,
            callbacks=[turns],
            shuffle=False,
            verbose=0,
        )
    without, watched = np.array(turns.seconds).T
    lower, median, upper = np.quantile(watched / without, [0.25, 0.5, 0.75])
    return Overhead(
        *map(float, (median, lower, upper)),
        mean=float(watched.sum() / without.sum()),
        step=float(1e3 * np.median(without) / steps),
        steps=steps,
        pairs=len(without),
    )


class _Turns(keras.callbacks.Callback):
    """Lets callbacks see every other epoch, and times all.

    Attributes:
        seconds: list of pairs: an epoch without them, and the next one with them.
    """

    def __init__(self, callbacks, effort):
        super().__init__()
        self.seconds = []
        self._callbacks = callbacks
        self._effort = effort
        self._epochs = []

    def set_model(self, model):
        super().set_model(model)
        self._tell("set_model", model)

    def set_params(self, params):
        super().set_params(params)
        self._tell("set_params", params)

    def on_train_begin(self, logs=None):
        self._tell("on_train_begin", logs)
        self._begin = time.perf_counter()

    def on_train_end(self, logs=None):
        self._tell("on_train_end", logs)

    def on_epoch_begin(self, epoch, logs=None):
        self._is_watched = epoch % 2 == 1
        self._start = time.perf_counter()
        if self._is_watched:
            self._tell("on_epoch_begin", epoch // 2, logs)

    def on_train_batch_begin(self, batch, logs=None):
        if self._is_watched:
            self._tell("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if self._is_watched:
            self._tell("on_train_batch_end", batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._is_watched:
            self._tell("on_epoch_end", epoch // 2, dict(logs))
        self._epochs.append(time.perf_counter() - self._start)
        if self._is_watched:
            self._end_pair()

    def _end_pair(self):
        # In the first pair both compile.
        self.seconds = [*zip(self._epochs[2::2], self._epochs[3::2], strict=True)]
        is_long = time.perf_counter() - self._begin >= self._effort.seconds
        if is_long and len(self.seconds) >= self._effort.min_rounds:
            self.model.stop_training = True

    def _tell(self, hook, *arguments):
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)
