"""Memory of a training step of a TrellisNet."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import TrellisCell, TrellisStack
from training.evaluation.peak_memory import peak_growth

# Kernels of 0.5 MiB: the statistics of the allocator ignore small tensors.
UNITS = 128


def _growth(num_layers):
    cell = TrellisCell(UNITS, weight_normalization=False, seed=0)
    stack = TrellisStack(cell, num_layers, recompute=True)
    inputs = np.zeros((1, 3, UNITS // 2), "float32")
    stack(inputs)

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(stack(inputs, training=True))
        return tape.gradient(loss, stack.trainable_variables)

    growth = peak_growth(gradients)
    if growth is None:
        pytest.skip("TensorFlow does not measure memory here.")
    return growth


def test_recomputed_levels_share_the_gradient_of_their_weights():
    few, many = _growth(2), _growth(12)
    assert few > 0.9  # The gradients of both kernels.
    assert many < 1.5 * few
