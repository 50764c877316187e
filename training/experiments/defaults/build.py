"""The model of one run, and the memory of its training step."""

import math

import keras
import numpy as np
import tensorflow as tf

from ...errors import config_errors
from ...evaluation.peak_memory import peak_growth
from ...runs.phases import equilibrium
from .tasks import TASKS

# Bytes of the states of a batch. The statistics of an allocator count tensors of this
# size, but ignore small ones.
_LARGE = 2**20


def build(config, input_shape):
    """Builds the functional model inputs -> DEQ(cell) -> prediction.

    With `gradient: unrolled` and a `fixed_point_iteration` of `max_iter: L` and `tol:
    null` the model is the explicit weight-tied network of L layers.

    Args:
        config: A `DefaultsConfig`.
        input_shape: Tuple. Shape of one example's input.

    Raises:
        InputError: If the cell, or a component of the layer, rejects an argument.
    """
    task, units = TASKS[config.data.task], config.model.units
    inputs = keras.Input(input_shape, name="inputs")
    # Some cells check their arguments when they are built.
    with config_errors("model"):
        layer = equilibrium(task.cell(units), config.model)
        outputs = task.decode(layer(task.encode(inputs, units)))
        return keras.Model(inputs, outputs, name=config.data.task)


def training_peak(config, examples):
    """Returns the growth of allocated memory in a training step, in MiB, or `None` if
    it cannot be measured.

    The batch is enlarged until the allocator counts its states; the result is scaled to
    the batch size of the config.

    Args:
        config: A `DefaultsConfig`.
        examples: `Examples`, which are repeated as needed.
    """
    model = build(config, examples.inputs.shape[1:])
    state_size = math.prod(model.get_layer("deq").output.shape[1:]) * 4
    loss = TASKS[config.data.task].loss()
    return step_peak(model, loss, examples, config.data.batch_size, state_size)


def step_peak(model, loss, examples, batch_size, state_size):
    """Returns the growth of allocated memory in a training step of a model, in MiB, or
    `None` if it cannot be measured; see `training_peak`.

    Args:
        model: `keras.Model`.
        loss: Function of targets and outputs.
        examples: `Examples`, which are repeated as needed.
        batch_size: Positive integer. The batch size of the result.
        state_size: Positive integer. Bytes of the state of one sample.
    """
    batch = max(batch_size, math.ceil(_LARGE / state_size))
    arguments = [
        tf.constant(np.resize(array, (batch, *array.shape[1:]))) for array in examples
    ]

    @tf.function(autograph=False)
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            value = loss(targets, model(inputs, training=True)) + sum(model.losses)
        return tape.gradient(value, model.trainable_variables)

    growth = peak_growth(lambda: step(*arguments))
    # A step keeps at least one state: less growth means that it was not measured.
    if growth is None or growth < batch * state_size / 2**20:
        return None
    return growth * batch_size / batch
