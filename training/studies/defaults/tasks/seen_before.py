"""Sequences of tokens: has this one been seen before?"""

import keras
import numpy as np

from deq_keras.layers import TransformerCell

from .task import Task, dense, drawn, one_hot_positions

LENGTH = 16
TOKENS = 12
_HEADS = 4


def _examples(generator, size):
    """Draws one-hot tokens beside one-hot positions, `(length, tokens + length)`.

    The target at a position is whether its token is at one before.
    """
    tokens = generator.integers(TOKENS, size=(size, LENGTH))
    inputs = [np.eye(TOKENS)[tokens], one_hot_positions(size, LENGTH)]
    is_equal = tokens[:, :, None] == tokens[:, None, :]
    targets = np.tril(is_equal, -1).any(axis=-1).astype("int32")
    return np.concatenate(inputs, axis=-1), targets


def _stem(inputs, units):
    return keras.layers.Dense(units, name="stem")(inputs)


def _cell(units, seed):
    return TransformerCell(units, _HEADS, 2 * units, seed=seed, name="cell")


SEEN_BEFORE = Task(drawn(_examples), _cell, dense(2), _stem)
