"""The memory that a training step takes."""

import math

import numpy as np
import tensorflow as tf

from ...evaluation.peak_memory import peak_growth
from .model import build
from .tasks import TASKS

# Of the states of a batch: far above the size of the smallest tensors that statistics
# of allocators see.
_LARGE = 2**20


def training_peak(config, task_config, examples, seed):
    """Returns by how many MiB allocated memory grows in a training step, or `None`
    where this cannot be measured.

    Measured is the step of a batch that is enlarged until its states are seen; the
    result is scaled to that of the task.

    Args:
        config: the `EquilibriumConfig` of the variant.
        task_config: a `TaskConfig`.
        examples: `Examples`, which are repeated as needed.
        seed: int. Of initialization.
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
