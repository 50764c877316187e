"""The model of one run, and the memory that a training step of it takes."""

import math

import keras
import numpy as np
import tensorflow as tf

from ...errors import config_errors
from ...evaluation.peak_memory import peak_growth
from ..study_runs import equilibrium_layer
from .tasks import TASKS

# Bytes of the states of a batch. The statistics of an allocator count tensors of this
# size, but ignore small ones.
_LARGE = 2**20


def build(config, task_config, input_shape, seed):
    """Returns the functional model inputs -> DEQ(cell) -> prediction, not compiled.

    Args:
        config: The `EquilibriumConfig` of the variant. With `unrolled` and a
            `fixed_point_iteration` of `max_iter: L` and `tol: null` the model is the
            explicit weight-tied network of L layers.
        task_config: A `TaskConfig`.
        input_shape: Tuple. Shape of one example's input.
        seed: Integer. Seed of the initial weights and the probes.

    Raises:
        InputError: If the cell, or a component of the layer, rejects an argument.
    """
    # Set here, because initializers draw from the global generator.
    keras.utils.set_random_seed(seed)
    task = TASKS[task_config.name]
    with config_errors(f"tasks.{task_config.name}"):
        cell = task.cell(task_config.units, seed)
    layer = equilibrium_layer(cell, config, seed)
    inputs = keras.Input(input_shape, name="inputs")
    features = task.encode(inputs, task_config.units)
    # Some cells check their arguments when they are built.
    with config_errors(f"tasks.{task_config.name}"):
        outputs = task.decode(layer(features))
    return keras.Model(inputs, outputs, name=task_config.name)


def training_peak(config, task_config, examples, seed):
    """Returns by how many MiB allocated memory grows in a training step, or `None`
    where this cannot be measured.

    The batch is enlarged until the allocator counts its states; the result is scaled to
    the batch size of the task.

    Args:
        config: The `EquilibriumConfig` of the variant.
        task_config: A `TaskConfig`.
        examples: `Examples`, which are repeated as needed.
        seed: Integer. Seed of the initial weights.
    """
    model = build(config, task_config, examples.inputs.shape[1:], seed)
    state_size = math.prod(model.get_layer("deq").output.shape[1:]) * 4
    batch = max(task_config.batch_size, math.ceil(_LARGE / state_size))
    arguments = [
        tf.constant(np.resize(array, (batch, *array.shape[1:]))) for array in examples
    ]
    loss = TASKS[task_config.name].loss()

    @tf.function
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            value = loss(targets, model(inputs, training=True)) + sum(model.losses)
        return tape.gradient(value, model.trainable_variables)

    growth = peak_growth(lambda: step(*arguments))
    # A step keeps at least one state: less growth means that it was not measured.
    if growth is None or growth < batch * state_size / 2**20:
        return None
    return growth * task_config.batch_size / batch
