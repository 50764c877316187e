"""Makes the model of one run."""

import keras

import deq_keras

from ...errors import InputError
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


def _given(config):
    """Returns the arguments of `DEQ` that the config does not leave to the layer."""
    return {
        name: value for name, value in vars(config).items() if value != LAYER_DEFAULT
    }
