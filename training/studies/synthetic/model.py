"""Makes and trains one scalar equilibrium model."""

import math
import time

import keras

import deq_keras

from ...errors import InputError
from ...runs.optimizer import build_optimizer
from .cell import ScalarCell


def build(config, weight, seed):
    """Returns the model x -> z*(x), not yet compiled.

    Args:
        config: the `SyntheticConfig`.
        weight: float. The weight of the Jacobian regulariser; 0 for none.
        seed: int. Of initialisation and probes.

    Raises:
        InputError: if the solver or the gradient refuses an argument.
    """
    # Here, because initialisation draws from the global generator.
    keras.utils.set_random_seed(seed)
    regularizer = None
    if weight:
        regularizer = deq_keras.regularizers.JacobianRegularizer(weight)
    try:
        layer = deq_keras.layers.DEQ(
            ScalarCell(config.model.units, name="cell"),
            solver=config.model.solver,
            gradient=config.model.gradient,
            regularizer=regularizer,
            seed=seed,
            name="deq",
        )
    except ValueError as error:
        raise InputError(f"`model`: {error}") from error
    inputs = keras.Input((1,), name="x")
    return keras.Model(inputs, layer(inputs), name="scalar_equilibrium")


def fit(model, config, pairs):
    """Trains a model by mean squared error; returns its history and the seconds.

    Args:
        model: what `build` returned.
        config: the `SyntheticConfig`.
        pairs: the training `Pairs`.

    Returns:
        A list of one dict for each epoch, and a float.
    """
    num_steps = math.ceil(len(pairs.x) / config.data.batch_size)
    optimizer = build_optimizer(config.optimizer, config.epochs, num_steps, "float32")
    # One call of the runtime an epoch: a step takes less time than its dispatch.
    model.compile(optimizer, loss="mse", steps_per_execution=num_steps)
    start = time.perf_counter()
    logs = model.fit(
        pairs.x,
        pairs.y,
        batch_size=config.data.batch_size,
        epochs=config.epochs,
        verbose=0,
    ).history
    seconds = time.perf_counter() - start
    rows = zip(*logs.values(), strict=True)
    return [
        {"epoch": epoch + 1, **dict(zip(logs, map(float, row), strict=True))}
        for epoch, row in enumerate(rows)
    ], seconds
