"""Random numbers of steps have the probabilities of their distribution."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from deq_keras import gradients
from deq_keras.gradients import step_counts

DRAWS = 4000


@pytest.mark.parametrize(
    ("steps", "smallest", "expected"),
    [
        ("uniform", 2, [0.25, 0.25, 0.25, 0.25]),
        # The probability of k is log(1 + 1 / (k - 1)), k = 2 to 5, divided by log 5.
        ("log_uniform", 2, [0.4307, 0.2519, 0.1787, 0.1386]),
        ("log_uniform", 0, [0.3562, 0.2084, 0.1478, 0.1147, 0.0937, 0.0792]),
        ((1.0, 0.0, 3.0), 2, [0.25, 0.0, 0.75]),
        (3, 0, [0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_frequencies_of_numbers_up_to_five(steps, smallest, expected):
    counts = step_counts.parse("steps", steps, smallest)

    @tf.function
    def draw(seeds):
        return tf.map_fn(
            lambda seed: counts.draw(5, seed) + tf.zeros((), "int32"), seeds
        )

    found = draw(tf.stack([tf.range(DRAWS), tf.zeros(DRAWS, "int32")], axis=1))
    frequencies = np.bincount(found - smallest, minlength=len(expected)) / DRAWS
    np.testing.assert_allclose(frequencies, expected, atol=4 * 0.5 / DRAWS**0.5)


@pytest.mark.parametrize("weights", [[0.5, np.float32(0.5)], (1, np.int64(1)), [2, 2]])
def test_weights_may_be_numbers_of_numpy(weights):
    assert len(set(step_counts.parse("steps", weights, 1).distribution)) == 1
    gradient = gradients.TruncatedGradient(weights)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(gradient)))
    copy = keras.saving.deserialize_keras_object(config)
    assert [*copy.num_steps] == [*weights]


@pytest.mark.parametrize("weights", [[], [0], [-1, 2], [True], [np.nan], [None]])
def test_other_weights_raise(weights):
    with pytest.raises(ValueError, match="numbers >= 0.*Received"):
        step_counts.parse("steps", weights, 1)
