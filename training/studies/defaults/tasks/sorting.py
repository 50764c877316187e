"""Sequences of symbols to be sorted."""

import numpy as np

from ..cells import AttentionCell
from .task import Task, dense, drawn, one_hot_positions, unseeded

LENGTH = 8
SYMBOLS = 4


def _examples(generator, size):
    """Draws sequences; the target is the sequence in ascending order.

    The inputs are one-hot symbols beside one-hot positions, `(length, symbols +
    length)`, and the targets symbols, `(length,)`.
    """
    symbols = generator.integers(SYMBOLS, size=(size, LENGTH))
    inputs = [np.eye(SYMBOLS)[symbols], one_hot_positions(size, LENGTH)]
    return np.concatenate(inputs, axis=-1), np.sort(symbols, axis=1)


SORTING = Task(drawn(_examples), unseeded(AttentionCell), dense(SYMBOLS))
