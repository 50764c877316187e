"""Learning rates that callbacks change. The optimizer of a saved model has a number."""

import math

import keras


def callbacks(job, history):
    """Returns a list of the callback of a job's schedule, empty for other schedules.

    Args:
        job: A `Job`.
        history: List with one dict per finished epoch.
    """
    config = job.config.optimizer
    if config.schedule == "inverse_square_root":
        warmup = round(config.warmup_epochs * job.steps_per_epoch)
        return [InverseSquareRoot(config.learning_rate, warmup)]
    if config.schedule == "plateau":
        mode = "max" if job.is_better(1.0, 0.0) else "min"
        return [
            Plateau(
                history,
                config.learning_rate,
                monitor=job.monitor,
                mode=mode,
                factor=config.decay_factor,
                patience=config.patience,
                min_lr=config.final_learning_rate,
            )
        ]
    return []


class InverseSquareRoot(keras.callbacks.Callback):
    """Sets the learning rate to peak * min(step / warmup, sqrt(warmup / step)).

    Args:
        peak: Float > 0. The highest learning rate.
        warmup: Positive integer. Steps until the peak.
    """

    def __init__(self, peak, warmup):
        super().__init__()
        self.peak = peak
        self.warmup = warmup

    def on_train_batch_begin(self, batch, logs=None):
        optimizer = self.model.optimizer
        step = int(optimizer.iterations)
        falling = math.sqrt(self.warmup / max(step, self.warmup))
        optimizer.learning_rate = self.peak * min(step / self.warmup, falling)


class Plateau(keras.callbacks.ReduceLROnPlateau):
    """Keras' callback, which a resumed run and a later phase continue.

    Repeats the finished epochs when training begins. Ignores epochs without a score.

    Args:
        history: List with one dict per finished epoch.
        learning_rate: Float > 0. Learning rate of the first epoch.
        **arguments: Arguments of `keras.callbacks.ReduceLROnPlateau`.
    """

    def __init__(self, history, learning_rate, **arguments):
        super().__init__(**arguments)
        self._history = history
        self._learning_rate = learning_rate

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.model.optimizer.learning_rate = self._learning_rate
        for row in list(self._history):
            self.on_epoch_end(row["epoch"] - 1, dict(row))

    def on_epoch_end(self, epoch, logs=None):
        if self.monitor in logs:
            super().on_epoch_end(epoch, logs)
