"""`TrellisCell` computes the reference's step and memory."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras.layers import TrellisCell
from tests.golden import arrays


def _assign_convolution(layer, bias, gain, direction):
    """Assigns the reference's weights: bias, gains, directions (out, in, taps)."""
    layer.bias.assign(bias)
    layer.gain.assign(np.ravel(gain))
    layer.direction.assign(np.transpose(direction, (2, 1, 0)))


def _inputs(shape=(4, 6, 5), seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


@pytest.mark.parametrize(
    "dilation_rate, first, total",
    [
        (
            1,
            [0.38383954, -0.0497566, -0.05571005, 0.17991548, 0.25036945],
            4.3781035546,
        ),
        (
            2,
            [0.38383954, 0.20365712, -0.06275907, 0.10785773, 0.20303809],
            4.7526939056,
        ),
    ],
)
def test_one_evaluation_equals_the_reference(dilation_rate, first, total):
    cell = TrellisCell(7, dilation_rate=dilation_rate, dtype="float64")
    cell.build((None, None, 4))
    _assign_convolution(
        cell.convolution,
        arrays.fill((28,), 8, 0.3),
        1 + arrays.fill((28, 1, 1), 9, 0.3),
        arrays.fill((28, 7, 2), 10, 0.3),
    )
    # The reference's arrays are (batch, channels, length).
    state = arrays.fill((2, 14, 5), 100, 0.7).swapaxes(1, 2)
    memory = arrays.fill((2, 14, 1), 102, 0.6).swapaxes(1, 2)
    injection = cell.inject(
        {
            "inputs": tf.zeros((2, 5, 4), tf.float64),
            "memory": {"hidden": memory[..., :7], "cell": memory[..., 7:]},
        }
    )
    injected = arrays.fill((2, 28, 5), 101, 0.5).swapaxes(1, 2)
    injection["inputs"] = injected + cell.convolution.bias
    value = cell({"hidden": state[..., :7], "cell": state[..., 7:]}, injection)
    np.testing.assert_allclose(value["hidden"][0, :, 0], first, atol=1e-8)
    np.testing.assert_allclose(
        sum(tf.reduce_sum(leaf) for leaf in value.values()), total, atol=1e-9
    )


def test_each_application_settles_a_position_without_a_tap_of_the_present():
    """A position then depends on those before it alone."""
    cell, inputs = TrellisCell(8, seed=1), _inputs()
    cell.build(inputs.shape)
    direction = cell.convolution.direction
    direction.assign(tf.concat([direction[:1], tf.zeros_like(direction[1:])], axis=0))
    injection = cell.inject(inputs)
    state = cell.initial_state(injection)
    for _ in range(inputs.shape[1]):
        before, state = state, cell(state, injection)
    after = cell(state, injection)
    np.testing.assert_array_equal(after["hidden"], state["hidden"])
    assert np.any(before["hidden"] != state["hidden"])


def test_empty_memory_is_zeros_and_short_memory_repeats_its_first():
    cell = TrellisCell(3, kernel_size=3, dilation_rate=2)
    inputs = _inputs((2, 6, 5))
    alone = cell.inject(inputs)
    empty = {name: tf.zeros((2, 0, 3)) for name in ("hidden", "cell")}
    injection = cell.inject({"inputs": inputs, "memory": empty})
    for name in alone:
        np.testing.assert_array_equal(injection[name], alone[name])
    memory = {name: _inputs((2, 2, 3), seed=3) for name in ("hidden", "cell")}
    injection = cell.inject({"inputs": inputs, "memory": memory})
    first, second = tf.unstack(memory["hidden"], axis=1)
    expected = tf.stack([first, first, first, second], axis=1)
    np.testing.assert_array_equal(injection["hidden"], expected)
    np.testing.assert_array_equal(injection["cell"], memory["cell"][:, 1:])


@pytest.mark.parametrize("weight_normalization", [True, False])
def test_only_weights_of_the_past_are_dropped(weight_normalization):
    cell = TrellisCell(
        8, weight_dropout_rate=0.5, weight_normalization=weight_normalization, seed=1
    )
    cell.build((None, None, 5))
    kernel = cell.constants(training=True)["kernel"].numpy()
    assert 0.3 < np.mean(kernel[0] == 0) < 0.7
    assert not np.any(kernel[1] == 0)
    if weight_normalization:  # The rest keeps its length.
        lengths = np.sqrt(np.sum(kernel**2, axis=(0, 1)))
        np.testing.assert_allclose(lengths, cell.convolution.gain, rtol=1e-5)
    assert not np.any(cell.constants()["kernel"] == 0)
