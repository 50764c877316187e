"""`TrellisStack` equals explicit loops, also with recomputed levels."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import TrellisCell, TrellisStack
from tests import harness
from training.evaluation.peak_memory import peak_growth


def _stack(dtype=None, **kwargs):
    arguments = {"num_layers": 5, "dilations": (1, 2), **kwargs}
    return TrellisStack(
        TrellisCell(8, output_dim=6, seed=1, dtype=dtype), **arguments, dtype=dtype
    )


def _inputs(shape=(6, 7, 5)):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def _sigmoid(array):
    return 1 / (1 + np.exp(-array))


def _by_loops(stack, inputs, hidden, cell):
    """The published network, position by position. Returns the last h and c."""
    kernels = [
        layer.kernel.numpy()
        for layer in (stack.cell.injection_convolution, stack.cell.convolution)
    ]
    batch, length, features = inputs.shape
    h, c = np.zeros((batch, length, 8)), np.zeros((batch, length, 8))
    for level in range(stack.num_layers):
        d = stack.dilations[level % len(stack.dilations)]
        new_h, new_c = np.zeros_like(h), np.zeros_like(c)
        for t in range(length):
            is_inside = t >= d
            gates = np.concatenate(
                [
                    inputs[:, t - d] if is_inside else np.zeros((batch, features)),
                    inputs[:, t],
                    h[:, t - d] if is_inside else hidden,
                    h[:, t],
                ],
                axis=1,
            ) @ np.concatenate([kernel[tap] for kernel in kernels for tap in (0, 1)])
            i, o, g, f = np.split(gates, 4, axis=1)
            before = c[:, t - d] if is_inside else cell
            new_c[:, t] = _sigmoid(f) * before + _sigmoid(i) * np.tanh(g)
            new_h[:, t] = _sigmoid(o) * np.tanh(new_c[:, t])
        h, c = new_h, new_c
    return h, c


def test_two_segments_by_explicit_loops():
    stack, inputs = _stack("float64", length=1), _inputs()
    zeros = np.zeros((6, 8))
    h, c = _by_loops(_built(stack), inputs, zeros, zeros)
    second_h, _ = _by_loops(stack, inputs[:, ::-1], h[:, -1], c[:, -1])
    with stack.reading_segments():
        np.testing.assert_allclose(stack(inputs), h[..., 2:], atol=1e-12)
        found = stack(inputs[:, ::-1].copy())
    np.testing.assert_allclose(found, second_h[..., 2:], atol=1e-12)
    stack.reset_memory()
    np.testing.assert_allclose(stack(inputs), h[..., 2:], atol=1e-12)


def _built(stack):
    stack.build((None, None, 5))
    return stack


def test_features_of_levels_are_outputs():
    stack = _stack(num_layers=7, auxiliary_frequency=3)
    outputs = stack(_inputs())
    assert len(outputs) == len(stack.compute_output_shape((6, 7, 5))) == 3
    assert outputs[0].shape == (6, 7, 6)
    shorter = TrellisStack(stack.cell, 3, dilations=(1, 2))
    np.testing.assert_allclose(outputs[1], shorter(_inputs()), atol=1e-6)


def test_recomputed_levels_have_the_same_gradients():
    stack = _built(_stack())
    other = TrellisStack(stack.cell, 5, dilations=(1, 2), recompute=True)
    gradients = []
    for layer in (stack, other):
        loss = lambda layer=layer: layer(_inputs(), training=True) ** 2  # noqa: E731
        gradients.append(harness.gradients(loss, stack.trainable_variables))
    for one, two in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def _growth(num_layers):
    """Returns the growth of memory in a training step, in MiB."""
    # Kernels of 0.5 MiB: the statistics of the allocator ignore small tensors.
    cell = TrellisCell(128, weight_normalization=False, seed=0)
    stack = TrellisStack(cell, num_layers, recompute=True)
    inputs = np.zeros((1, 3, 64), "float32")
    stack(inputs)

    @tf.function
    def gradients():
        variables = stack.trainable_variables
        return harness.gradients(lambda: stack(inputs, training=True), variables)

    growth = peak_growth(gradients)
    if growth is None:
        pytest.skip("TensorFlow does not measure memory here.")
    return growth


def test_recomputed_levels_share_the_gradient_of_their_weights():
    few, many = _growth(2), _growth(12)
    assert few > 0.9  # The gradients of both kernels.
    assert many < 1.5 * few
