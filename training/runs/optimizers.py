"""Optimizers of runs, and schedules of their learning rates."""

import math

import keras

from ..errors import InputError
from .rectified_adam import RectifiedAdam

_CLASSES = {
    "adagrad": keras.optimizers.Adagrad,
    "adam": keras.optimizers.Adam,
    "radam": RectifiedAdam,
    "rmsprop": keras.optimizers.RMSprop,
    "sgd": keras.optimizers.SGD,
}


def build_optimizer(config, num_steps, steps_per_epoch, precision):
    """Returns the optimizer of an `OptimizerConfig` for a run of `num_steps`."""
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if warmup >= num_steps:
        raise InputError(
            "`optimizer.warmup_epochs` must be less than the "
            f"{num_steps / steps_per_epoch:g} epochs of all phases. Received: "
            f"warmup_epochs={config.warmup_epochs}."
        )
    arguments = {
        "learning_rate": _schedule(config, warmup, num_steps, steps_per_epoch),
        "weight_decay": config.weight_decay,
        "global_clipnorm": config.clip_norm,
    }
    if config.accumulation_steps > 1:
        arguments["gradient_accumulation_steps"] = config.accumulation_steps
    if config.ema_momentum is not None:
        arguments |= {"use_ema": True, "ema_momentum": config.ema_momentum}
    if config.name == "sgd":
        arguments |= {"momentum": 0.9, "nesterov": config.nesterov}
    optimizer = _CLASSES[config.name](**arguments)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _schedule(config, warmup, total, steps_per_epoch):
    """Returns the learning rate of each of the steps of a run.

    A number if a callback changes it; see `schedule_callbacks`.
    """
    peak, last = config.learning_rate, config.final_learning_rate
    if warmup and config.schedule in ("plateau", "poly", "step"):
        raise InputError(
            f"`optimizer.warmup_epochs` must be 0 with the schedule `{config.schedule}`"
            f". Received: warmup_epochs={config.warmup_epochs}."
        )
    if config.schedule == "plateau":
        return peak  # A callback lowers it.
    if config.schedule == "inverse_square_root":
        if not warmup:
            raise InputError(
                "`optimizer.warmup_epochs` must be at least one step with the schedule "
                "`inverse_square_root`, which falls from its end. Received: "
                f"warmup_epochs={config.warmup_epochs}."
            )
        return peak  # A callback sets it in every step.
    if config.schedule == "step":
        boundaries = [round(epoch * steps_per_epoch) for epoch in config.decay_epochs]
        rates = [peak * config.decay_factor**i for i in range(len(boundaries) + 1)]
        # In Keras, the step at a boundary still has the previous rate.
        boundaries = [boundary - 1 for boundary in boundaries]
        return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
    if config.schedule == "poly":
        return keras.optimizers.schedules.PolynomialDecay(peak, total, last, power=0.9)
    if config.schedule == "constant":
        last = peak
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup else peak,
        decay_steps=total - warmup,
        alpha=last / peak,
        warmup_target=peak if warmup else None,
        warmup_steps=warmup,
    )


def schedule_callbacks(config, steps_per_epoch, history, monitor, mode):
    """Returns the callbacks of schedules that the optimizer itself cannot follow.

    The optimizer of a saved model then has a number as its learning rate.

    Args:
        config: An `OptimizerConfig`.
        steps_per_epoch: Positive integer. Training steps of a whole epoch.
        history: List with one dict per finished epoch.
        monitor: String. Key of the logs that determines the best epoch.
        mode: String. `"max"` or `"min"`, the better of two monitored values.
    """
    if config.schedule == "inverse_square_root":
        warmup = round(config.warmup_epochs * steps_per_epoch)
        return [
            InverseSquareRoot(config.learning_rate, warmup, config.accumulation_steps)
        ]
    if config.schedule == "plateau":
        return [
            Plateau(
                history,
                config.learning_rate,
                monitor=monitor,
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
        accumulation_steps: Positive integer. Steps per update of the optimizer, whose
            `iterations` count updates.
    """

    def __init__(self, peak, warmup, accumulation_steps):
        super().__init__()
        self.peak = peak
        self.warmup = warmup
        self.accumulation_steps = accumulation_steps

    def on_train_batch_begin(self, batch, logs=None):
        optimizer = self.model.optimizer
        step = int(optimizer.iterations) * self.accumulation_steps
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
