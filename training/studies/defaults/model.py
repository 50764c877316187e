"""Makes and trains the model of one run."""

import math
import time

import keras

import deq_keras

from ...errors import InputError
from ...runs.optimizer import build_optimizer
from .schema import LAYER_DEFAULT
from .task import TASKS


def build(config, task_config, input_shape, seed):
    """Returns the functional model inputs -> DEQ(cell) -> prediction, not compiled.

    Args:
        config: the `EquilibriumConfig` of the variant. With `unrolled` and a
            `fixed_point_iteration` of `max_iter: L` and `tol: null` the model is the
            explicit weight-tied network of L layers.
        task_config: a `TaskConfig`.
        input_shape: shape of one example's input.
        seed: int. Of initialisation and probes.

    Raises:
        InputError: if the cell, solver, gradient or regulariser refuses an argument.
    """
    # Here, because initialisation draws from the global generator.
    keras.utils.set_random_seed(seed)
    task = TASKS[task_config.name]
    try:
        cell = task.cell(task_config.units, seed)
    except ValueError as error:
        raise InputError(f"task `{task_config.name}`: {error}") from error
    try:
        layer = deq_keras.layers.DEQ(cell, seed=seed, name="deq", **_given(config))
    except (TypeError, ValueError) as error:
        raise InputError(f"`equilibrium`: {error}") from error
    inputs = keras.Input(input_shape, name="inputs")
    features = task.encode(inputs, task_config.units)
    return keras.Model(inputs, task.decode(layer(features)), name=task_config.name)


def fit(model, task_config, examples):
    """Trains a model; returns its history and the seconds.

    Args:
        model: what `build` returned.
        task_config: a `TaskConfig`.
        examples: the training `Examples`.

    Returns:
        A list of one dict for each epoch, and a float.
    """
    num_steps = math.ceil(len(examples.inputs) / task_config.batch_size)
    optimizer = build_optimizer(
        task_config.optimizer, task_config.epochs, num_steps, "float32"
    )
    model.compile(
        optimizer, TASKS[task_config.name].loss(), steps_per_execution=num_steps
    )
    start = time.perf_counter()
    logs = model.fit(
        examples.inputs,
        examples.targets,
        batch_size=task_config.batch_size,
        epochs=task_config.epochs,
        verbose=0,
    ).history
    seconds = time.perf_counter() - start
    return [
        {"epoch": epoch + 1, **{name: float(logs[name][epoch]) for name in logs}}
        for epoch in range(task_config.epochs)
    ], seconds


def _given(config):
    """Returns the arguments of `DEQ` that the config does not leave to the layer."""
    return {
        name: value for name, value in vars(config).items() if value != LAYER_DEFAULT
    }
