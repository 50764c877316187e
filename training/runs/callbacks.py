"""Callbacks of a training run: checkpoints, records, progress, waiting for data."""

import contextlib
import math
import time

import keras
import tensorflow as tf

from ..files import records, saved_model
from . import checkpoint


class EpochBackup(keras.callbacks.Callback):
    """Saves a checkpoint at the end of every epoch, so that it can be continued.

    The checkpoint comes last: whatever is interrupted before it is done again on
    resuming, with the same result.

    Args:
        folder: where the checkpoints go.
        history: list of one dict for each epoch that is done; grows.
        phase: str. The name of the current phase, a column of the history.
    """

    def __init__(self, folder, history, phase):
        super().__init__()
        self.folder = folder
        self.history = history
        self.phase = phase
        self._start = None
        self._seconds = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()
        self._seconds = None

    def on_train_batch_end(self, batch, logs=None):
        # After the last batch come validation and the other callbacks.
        self._seconds = time.perf_counter() - self._start

    def on_epoch_end(self, epoch, logs=None):
        logs = {name: float(value) for name, value in logs.items()}
        self._check_finite(epoch, logs["loss"])
        row = {
            "epoch": epoch + 1,
            "phase": self.phase,
            "seconds": self._seconds,
            **logs,
        }
        self.record(row)
        checkpoint.save(self.folder, self.model, self.history)

    def record(self, row):
        """Adds the row of an epoch to the history."""
        self.history.append(row)

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


class EpochRecorder(EpochBackup):
    """Saves history, best model and checkpoint at the end of every epoch.

    Args:
        folder: where `history.csv`, `best.keras` and the checkpoints go.
        history: list of one dict for each epoch that is done; grows.
        phase: str. The name of the current phase, a column of the history.
        monitor: str. The entry of the logs that tells the best epoch.
        is_better: function of two values of it.
        kept: the model whose best epoch is saved, where that is a part of the one that
            `fit` is called on.
        in_place: function that returns a context in which the weights are those that
            validation had.
    """

    def __init__(
        self,
        folder,
        history,
        phase,
        monitor,
        is_better,
        kept=None,
        in_place=contextlib.nullcontext,
    ):
        super().__init__(folder, history, phase)
        self.monitor = monitor
        self.is_better = is_better
        self.kept = kept
        self.in_place = in_place

    def record(self, row):
        is_best = self._is_best(row)
        super().record(row)
        if is_best:
            kept = self.model if self.kept is None else self.kept
            with self.in_place():
                saved_model.save(kept, self.folder / "best.keras")
        records.write_history(self.folder / records.HISTORY, self.history)

    def _is_best(self, row):
        value = row.get(self.monitor, math.nan)
        earlier = [other.get(self.monitor, math.nan) for other in self.history]
        return not math.isnan(value) and all(
            math.isnan(other) or self.is_better(value, other) for other in earlier
        )


class AveragedWeights(keras.callbacks.SwapEMAWeights):
    """Validates with the averages that an optimizer keeps, and ends a phase with them.

    Keras replaces the weights by their averages when `fit` ends. Here that happens
    before the last epoch is saved, so that what is continued from there is the same.
    """

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.params["epochs"]:
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    @contextlib.contextmanager
    def in_place(self):
        """As long as it lasts, the weights are the averages."""
        self.on_test_begin()
        yield
        self.on_test_end()


class EpochLine(keras.callbacks.Callback):
    """Prints a line of at most 100 columns at the end of every epoch.

    It has the loss, the score and its validation, evaluations (NFE) and residual of
    the solves, and seconds. The rest is in the files.

    Args:
        score: str. The name of the score in the logs, which may be the loss.
        layer: optional str. The name of the equilibrium layer.
        num_epochs: int. Of the whole run.
    """

    def __init__(self, score, layer, num_epochs):
        super().__init__()
        self.score = score
        self.layer = layer
        self.num_epochs = num_epochs
        self._start = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self._start
        digits = ".4g" if self.score == "loss" else ".4f"
        columns = {
            self.score: (self.score, digits),
            "loss": ("loss", ".4g"),
            f"val_{self.score}": ("val", digits),
            f"{self.layer}_evaluations": ("NFE", ".1f"),
            f"{self.layer}_residual": ("residual", ".1e"),
        }
        values = [
            f"{label} {logs[name]:{form}}"
            for name, (label, form) in columns.items()
            if name in logs
        ]
        number = f"epoch {epoch + 1}/{self.num_epochs}"
        duration = f"{seconds:.{1 if seconds < 100 else 0}f} s"
        print("  ".join([number, *values, duration]), flush=True)


class ShortBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar with the loss and the score alone.

    Args:
        score: str. The name of the score in the logs.
    """

    def __init__(self, score):
        super().__init__()
        self.names = ("loss", score)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, self._shown(logs))

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, self._shown(logs))

    def _shown(self, logs):
        return {name: logs[name] for name in self.names if name in logs}


class Stopwatch:
    """Adds up the seconds for which readers of datasets wait for their batches."""

    def __init__(self):
        self._waited = None

    @property
    def is_used(self):
        """Whether there are such datasets."""
        return self._waited is not None

    @property
    def seconds(self):
        """So far."""
        return float(self._waited.numpy())

    def over(self, dataset):
        """Returns the same dataset, whose readers' waiting is counted.

        Its buffers come before: what is ready there is not waited for.
        """
        if not self.is_used:
            with tf.device("CPU:0"):
                self._waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)

        def come(asked, batch):
            with tf.control_dependencies(tf.nest.flatten(batch)):
                waited = self._waited.assign_add(tf.timestamp() - asked)
            with tf.control_dependencies([waited]):
                return tf.nest.map_structure(tf.identity, batch)

        # `zip` reads its first dataset first: the time at which a batch was requested.
        asked = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
        options = tf.data.Options()
        # A buffer after the clock would be what is timed.
        options.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.zip(asked, dataset).map(come).with_options(options)


class DataWait(keras.callbacks.Callback):
    """Adds to the logs of an epoch the share of its training that waited for data.

    `data_wait` is between 0 and 1, from the beginning of the epoch to the end of its
    last training step. On a device that computes while the host continues, it is the
    fraction in which the host waits: the most that faster input could save.

    Args:
        stopwatch: the `Stopwatch` of the data.
    """

    def __init__(self, stopwatch):
        super().__init__()
        self._stopwatch = stopwatch
        self._start = self._waited = self._share = None

    def on_epoch_begin(self, epoch, logs=None):
        self._start, self._waited = time.perf_counter(), self._stopwatch.seconds

    def on_train_batch_end(self, batch, logs=None):
        # After the last batch comes validation, which reads data too.
        waited = self._stopwatch.seconds - self._waited
        self._share = waited / (time.perf_counter() - self._start)

    def on_epoch_end(self, epoch, logs=None):
        logs["data_wait"] = self._share
