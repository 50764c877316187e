"""Puts every finished epoch on disk."""

import contextlib
import math
import time

import keras

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
