"""Callbacks of a training run: checkpoints, records, progress and data waits."""

import contextlib
import math
import sys
import time

import keras
import tensorflow as tf

from ..files import records, saved_model
from . import checkpoint

# Time between two lines of `EpochLine` within an epoch.
_SECONDS_OF_LINE = 60


class EpochRecorder(keras.callbacks.Callback):
    """Saves history, best model and checkpoint at the end of every epoch.

    The checkpoint must be the last file of an epoch: a resumed run repeats all steps
    that preceded a missing checkpoint, with the same result.

    Args:
        folder: `pathlib.Path` of `history.csv`, `best.keras` and the checkpoints.
        history: List with one dict per finished epoch, to which epochs are appended.
        phase: String. Name of the current phase, a column of the history.
        monitor: String. Key of the logs that determines the best epoch.
        mode: String. `"max"` or `"min"`, the better of two monitored values.
        kept: Model to save at its best epoch, if it is only a component of the trained
            model. Defaults to `None`, the trained model.
        in_place: Function that returns a context with the weights used in validation.
        checks_finite: Boolean. Whether a loss or weights that are not finite raise an
            error. Defaults to `True`.
    """

    def __init__(
        self,
        folder,
        history,
        phase,
        monitor,
        mode,
        kept=None,
        in_place=contextlib.nullcontext,
        checks_finite=True,
    ):
        super().__init__()
        self.folder = folder
        self.history = history
        self.phase = phase
        self.checks_finite = checks_finite
        self.monitor = monitor
        self.mode = mode
        self.kept = kept
        self.in_place = in_place
        self._start = None
        self._seconds = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()
        self._seconds = None

    def on_train_batch_end(self, batch, logs=None):
        # Excludes validation and other callbacks, which follow the last batch.
        self._seconds = time.perf_counter() - self._start

    def on_epoch_end(self, epoch, logs=None):
        logs = {name: float(value) for name, value in logs.items()}
        if self.checks_finite:
            self._check_finite(epoch, logs["loss"])
        row = {
            "epoch": epoch + 1,
            "phase": self.phase,
            "seconds": self._seconds,
            **logs,
        }
        is_best = self._is_best(row)
        self.history.append(row)
        if is_best:
            kept = self.model if self.kept is None else self.kept
            with self.in_place():
                saved_model.save(kept, self.folder / "best.keras")
        records.write_csv(self.folder / records.HISTORY, self.history)
        checkpoint.save(self.folder, self.model, self.history)

    def _check_finite(self, epoch, loss):
        trouble = None if math.isfinite(loss) else f"The loss is {loss}"
        broken = checkpoint.not_finite(self.model.trainable_variables)
        if broken and trouble is None:
            trouble = f"The weights {', '.join(broken)} are not finite"
        if trouble is not None:
            raise FloatingPointError(
                f"{trouble} in epoch {epoch + 1}. The checkpoint of the epoch before "
                "is kept. A lower optimizer.learning_rate, optimizer.clip_norm or a "
                "regularizer may help."
            )

    def _is_best(self, row):
        value = row.get(self.monitor, math.nan)
        earlier = [other.get(self.monitor, math.nan) for other in self.history]
        sign = 1 if self.mode == "max" else -1
        return not math.isnan(value) and all(
            math.isnan(other) or sign * value > sign * other for other in earlier
        )


class AveragedWeights(keras.callbacks.SwapEMAWeights):
    """Validates with the optimizer's averaged weights, and ends a phase with them.

    Keras replaces the weights by their averages when `fit` ends. This callback does so
    before the last epoch is saved, so that a resumed run continues from the same state.
    """

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.params["epochs"]:
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    @contextlib.contextmanager
    def in_place(self):
        """Returns a context in which the weights are the averages."""
        self.on_test_begin()
        yield
        self.on_test_end()


class ShortLastEpoch(keras.callbacks.Callback):
    """Ends the last epoch of `fit` after fewer steps than the others.

    A second `fit` with another number of steps would trace the model again, and start
    from the averaged weights, if there are any.

    Args:
        num_steps: Positive integer. Training steps of the last epoch.
    """

    def __init__(self, num_steps):
        super().__init__()
        self.num_steps = num_steps
        self._is_last = False

    def on_epoch_begin(self, epoch, logs=None):
        self._is_last = epoch + 1 == self.params["epochs"]

    def on_train_batch_end(self, batch, logs=None):
        # Keras then validates the model and ends the epoch as usual.
        if self._is_last and batch + 1 >= self.num_steps:
            self.model.stop_training = True


class EpochLine(keras.callbacks.Callback):
    """Prints a line of at most 100 columns at the end of every epoch.

    The line shows the loss, the score and its validation, the evaluations (NFE) and the
    residual of the solves, and the seconds. Files have all other values. Where no
    progress bar is shown, a line a minute has the step and the loss within an epoch.

    Args:
        score: `Score` of the experiment, which may be the loss.
        layer: String or `None`. Name of the equilibrium layer.
        num_epochs: Positive integer. Number of epochs of the whole run.
    """

    def __init__(self, score, layer, num_epochs):
        super().__init__()
        self.score = score
        self.layer = layer
        self.num_epochs = num_epochs
        self._start = self._printed = self._number = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start = self._printed = time.perf_counter()
        self._number = f"epoch {epoch + 1}/{self.num_epochs}"

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if now - self._printed < _SECONDS_OF_LINE or sys.stdout.isatty():
            return
        self._printed = now
        step = f"step {batch + 1}/{self.params['steps']}"
        line = [
            self._number,
            step,
            f"loss {logs['loss']:.4g}",
            f"{now - self._start:.0f} s",
        ]
        print("  ".join(line), flush=True)

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self._start
        columns = {self.score.name: (self.score.name, self._score_text)}
        columns.setdefault("loss", ("loss", "{:.4g}".format))
        columns |= {
            f"val_{self.score.name}": ("val", self._score_text),
            f"{self.layer}_evaluations": ("NFE", "{:.1f}".format),
            f"{self.layer}_residual": ("residual", "{:.1e}".format),
        }
        values = [
            f"{label} {text(logs[name])}"
            for name, (label, text) in columns.items()
            if name in logs
        ]
        duration = f"{seconds:.{1 if seconds < 100 else 0}f} s"
        print("  ".join([self._number, *values, duration]), flush=True)

    def _score_text(self, value):
        unit = " %" if self.score.unit == "%" else ""
        return self.score.text(value) + unit


class ShortBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar with only the loss and the score, in the unit of its label.

    Args:
        score: `Score` of the experiment, which may be the loss.
    """

    def __init__(self, score):
        super().__init__()
        self.score = score

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, self._choose(logs))

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, self._choose(logs))

    def _choose(self, logs):
        score = self.score
        columns = {"loss": ("loss", 1)}
        if score.name != "loss":
            columns[score.name] = (score.heading, score.scale)
        return {
            label: scale * logs[name]
            for name, (label, scale) in columns.items()
            if name in logs
        }


class Stopwatch:
    """Sums the seconds for which readers of datasets wait for batches."""

    def __init__(self):
        self._waited = None

    @property
    def is_used(self):
        """Returns whether the stopwatch measures any dataset."""
        return self._waited is not None

    @property
    def seconds(self):
        """Returns the seconds so far."""
        return float(self._waited.numpy())

    def over(self, dataset):
        """Returns the same dataset, and measures how long its readers wait.

        Buffers of the dataset precede the measurement, so buffered batches do not count
        as waiting.
        """
        if not self.is_used:
            with tf.device("CPU:0"):
                self._waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)

        def come(asked, batch):
            with tf.control_dependencies(tf.nest.flatten(batch)):
                waited = self._waited.assign_add(tf.timestamp() - asked)
            with tf.control_dependencies([waited]):
                return tf.nest.map_structure(tf.identity, batch)

        # `zip` reads its first dataset first, so this is the time of the request.
        asked = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
        options = tf.data.Options()
        # A buffer after the clock would distort the measurement.
        options.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.zip(asked, dataset).map(come).with_options(options)


class DataWait(keras.callbacks.Callback):
    """Logs the fraction of an epoch's training time spent waiting for data.

    `data_wait` is in [0, 1] and covers the epoch up to the end of its last training
    step. On a device that computes asynchronously, it is the fraction in which the host
    waits: an upper bound of the time that faster input could save.

    Args:
        stopwatch: `Stopwatch` of the data.
    """

    def __init__(self, stopwatch):
        super().__init__()
        self._stopwatch = stopwatch
        self._start = self._waited = self._share = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start, self._waited = time.perf_counter(), self._stopwatch.seconds

    def on_train_batch_end(self, batch, logs=None):
        # Excludes validation, which follows the last batch and also reads data.
        waited = self._stopwatch.seconds - self._waited
        self._share = waited / (time.perf_counter() - self._start)

    def on_epoch_end(self, epoch, logs=None):
        logs["data_wait"] = self._share
