"""Makes the optimizer of a run from its config."""

import keras

from ..errors import InputError


def build_optimizer(config, num_epochs, steps_per_epoch, precision):
    """Returns the optimizer of an `OptimizerConfig` for a run of `num_epochs`."""
    warmup = round(config.warmup_epochs * steps_per_epoch)
    total = num_epochs * steps_per_epoch
    if warmup >= total:
        raise InputError(
            f"`optimizer.warmup_epochs` must be less than the {num_epochs} epochs of "
            f"all phases. Received: warmup_epochs={config.warmup_epochs}."
        )
    arguments = {
        "learning_rate": _schedule(config, warmup, total),
        "weight_decay": config.weight_decay,
        "global_clipnorm": config.clip_norm,
    }
    if config.ema_momentum is not None:
        arguments |= {"use_ema": True, "ema_momentum": config.ema_momentum}
    if config.name == "sgd":
        optimizer = keras.optimizers.SGD(
            momentum=0.9, nesterov=config.nesterov, **arguments
        )
    else:
        optimizer = keras.optimizers.Adam(**arguments)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _schedule(config, warmup, total):
    """Returns the learning rate of each of the steps of a run."""
    peak, last = config.learning_rate, config.final_learning_rate
    if config.schedule == "poly":
        if warmup:
            raise InputError(
                "`optimizer.warmup_epochs` must be 0 with the schedule `poly`. "
                f"Received: warmup_epochs={config.warmup_epochs}."
            )
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
