"""What a person sees of a training: a line an epoch, and a bar in a terminal."""

import time

import keras


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
