"""Builds the model of one run."""

import keras

from ..equilibrium import equilibrium_layer, refused_in
from .tasks import TASKS


def build(config, task_config, input_shape, seed):
    """Returns the functional model inputs -> DEQ(cell) -> prediction, not compiled.

    Args:
        config: the `EquilibriumConfig` of the variant. With `unrolled` and a
            `fixed_point_iteration` of `max_iter: L` and `tol: null` the model is the
            explicit weight-tied network of L layers.
        task_config: a `TaskConfig`.
        input_shape: shape of one example's input.
        seed: int. Of initialization and probes.

    Raises:
        InputError: if the cell, or a part of the layer, refuses an argument.
    """
    # Set here, because initializers draw from the global generator.
    keras.utils.set_random_seed(seed)
    task = TASKS[task_config.name]
    with refused_in(f"task `{task_config.name}`"):
        cell = task.cell(task_config.units, seed)
    layer = equilibrium_layer(cell, config, seed)
    inputs = keras.Input(input_shape, name="inputs")
    features = task.encode(inputs, task_config.units)
    # Some cells look at their arguments when they are built.
    with refused_in(f"task `{task_config.name}`"):
        outputs = task.decode(layer(features))
    return keras.Model(inputs, outputs, name=task_config.name)
