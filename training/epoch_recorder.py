"""Puts every finished epoch on disk."""

import csv
import io
import math
import time

import keras

from training import checkpoint
from training.atomic_file import replacing, write_text


class EpochRecorder(keras.callbacks.Callback):
    """Saves history, best model and checkpoint at the end of every epoch.

    The checkpoint comes last: whatever is interrupted before it is done again on
    resuming, with the same result.

    Args:
        folder: where `history.csv`, `best.keras` and `checkpoint.npz` go.
        history: list of one dict for each epoch that is done; grows.
        phase: str. The name of the current phase, a column of the history.
        monitor: str. The entry of the logs that tells the best epoch.
        is_better: function of two values of it.
    """

    def __init__(self, folder, history, phase, monitor, is_better):
        super().__init__()
        self.folder = folder
        self.history = history
        self.phase = phase
        self.monitor = monitor
        self.is_better = is_better
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
        if not math.isfinite(logs["loss"]):
            raise FloatingPointError(
                f"The loss is {logs['loss']} in epoch {epoch + 1}. The checkpoint of "
                "the epoch before is kept. A lower optimizer.learning_rate, "
                "optimizer.clip_norm or a jacobian_regularizer may help."
            )
        # NaN: nothing was recorded, as for training statistics in validation.
        known = {name: value for name, value in logs.items() if not math.isnan(value)}
        row = {"epoch": epoch + 1, "phase": self.phase, "seconds": self._seconds}
        row.update(known)
        is_best = self.monitor in row and all(
            self.is_better(row[self.monitor], earlier[self.monitor])
            for earlier in self.history
            if self.monitor in earlier
        )
        self.history.append(row)
        if is_best:
            save_model(self.model, self.folder / "best.keras")
        write_history(self.folder / "history.csv", self.history)
        checkpoint.save(self.folder / "checkpoint.npz", self.model, self.history)


def save_model(model, path):
    """Saves a `.keras` file atomically."""
    with replacing(path) as temporary:
        model.save(temporary)


def write_history(path, history):
    """Writes the history as CSV, with the columns of all phases."""
    columns = dict.fromkeys(name for row in history for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_text(path, text.getvalue())
