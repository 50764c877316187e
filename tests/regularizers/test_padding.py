"""Positions that are padding change neither penalties nor diagnostics."""

import numpy as np
import pytest
import tensorflow as tf

from deq_keras import diagnostics, regularizers
from deq_keras.core.problem import FixedPointProblem

SEED = tf.constant([3, 4])
FEATURES = 2


def _next_position(state):
    return tf.pad(state[:, 1:], [[0, 0], [0, 1], [0, 0]])


def _sequence(state, _):
    return 0.5 * tf.tanh(state) + 0.3 * _next_position(state)


def _sequence_and_vector(state, _):
    sequence, vector = state["sequence"], state["vector"]
    return {
        "sequence": _sequence(sequence, ()) + vector[:, None],
        "vector": 0.7 * vector + tf.reduce_sum(sequence, axis=1),
    }


def _linearization(function, lengths, width):
    """Linearizes `function` at zero, with samples padded to a width."""
    mask = tf.range(width)[None] < tf.constant(lengths)[:, None]
    sequence = tf.zeros((len(lengths), width, FEATURES), tf.float64)
    state = sequence
    if function is _sequence_and_vector:
        vector = tf.zeros((len(lengths), FEATURES), tf.float64)
        state = {"sequence": sequence, "vector": vector}
    return FixedPointProblem(function, mask=mask).linearize(state)


class AllUnitVectors(regularizers.JacobianRegularizer):
    """Estimates |J|_F^2 / D exactly, apart from the number of probes."""

    def __init__(self, size):
        super().__init__(num_probes=size)
        self.next_entry = 0

    def probe(self, value, seed):
        leaves, start = [], 0
        for leaf in tf.nest.flatten(value):
            size = int(np.prod(leaf.shape[1:]))
            row = tf.one_hot(self.next_entry - start, size, dtype=leaf.dtype)
            row = tf.reshape(row, [1, *leaf.shape[1:]])
            leaves.append(tf.repeat(row, leaf.shape[0], axis=0))
            start += size
        self.next_entry += 1
        return tf.nest.pack_sequence_as(value, leaves)


def _mean_squared_norm(linearization):
    leaves = tf.nest.flatten(linearization.value)
    size = sum(int(np.prod(leaf.shape[1:])) for leaf in leaves)
    return size * AllUnitVectors(size)(linearization, SEED).numpy()


@pytest.mark.parametrize("function", [_sequence, _sequence_and_vector])
def test_padding_does_not_change_the_jacobian_penalty(function):
    alone = _mean_squared_norm(_linearization(function, [3, 3], 3))
    padded = _mean_squared_norm(_linearization(function, [3, 3], 9))
    np.testing.assert_allclose(padded, alone, rtol=1e-12)


def test_penalty_is_a_mean_over_unmasked_positions():
    # Each of the n positions of a sample has 0.5, and all but the last 0.3.
    squares = FEATURES * sum(0.25 * n + 0.09 * (n - 1) for n in (2, 5))
    actual = _mean_squared_norm(_linearization(_sequence, [2, 5], 6))
    np.testing.assert_allclose(actual, squares / (FEATURES * (2 + 5)), rtol=1e-12)


def test_batch_of_padding_has_no_penalty():
    assert _mean_squared_norm(_linearization(_sequence, [0, 0], 4)) == 0.0


def test_padding_that_f_reads_is_no_growth():
    """f moves the state by one position, so a single position reads only padding."""
    linearization = _linearization(lambda z, _: 2.0 * _next_position(z), [1], 3)
    penalty = regularizers.ContractionRegularizer(margin=0.0, residual_weight=0.0)
    assert penalty(linearization, SEED) == 0.0
    assert diagnostics.jacobian_norm(linearization) == 0.0
    assert diagnostics.spectral_radius(linearization).value == 0.0
