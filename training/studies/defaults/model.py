"""Makes the model of one run."""

import contextlib

import keras

import deq_keras

from ...errors import InputError
from .schema import LAYER_DEFAULT
from .tasks import TASKS


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
        InputError: if the cell, or a part of the layer, refuses an argument.
    """
    # Here, because initialisation draws from the global generator.
    keras.utils.set_random_seed(seed)
    task = TASKS[task_config.name]
    with _refused(f"task `{task_config.name}`"):
        cell = task.cell(task_config.units, seed)
    with _refused("`equilibrium`"):
        layer = deq_keras.layers.DEQ(cell, seed=seed, name="deq", **_given(config))
    inputs = keras.Input(input_shape, name="inputs")
    features = task.encode(inputs, task_config.units)
    # Some cells look at their arguments when they are built.
    with _refused(f"task `{task_config.name}`"):
        outputs = task.decode(layer(features))
    return keras.Model(inputs, outputs, name=task_config.name)


@contextlib.contextmanager
def _refused(place):
    """Names the place in the config of what a part refuses."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: {error}") from error


def _given(config):
    """Returns the arguments of `DEQ` that the config does not leave to the layer."""
    return {
        name: value for name, value in vars(config).items() if value != LAYER_DEFAULT
    }
