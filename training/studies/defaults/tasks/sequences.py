"""Sequences whose label at a position hangs on all positions before it."""

import itertools

import numpy as np

from ....data.reasoning import compositions, running_products
from ..cells import ConvolutionalCell
from .task import Task, dense, drawn, unseeded

LENGTH = 16
PRODUCT_LENGTH = 12
# Of two bits. While they differ a carry goes on, by 10 positions in the mean; of fair
# bits it would be 2.
_DIFFERENT_SHARE = 0.9

_PERMUTATIONS = tuple(itertools.permutations(range(3)))
# None, and the two swaps of neighbors, of which the products are all permutations.
_FACTORS = ((0, 1, 2), (1, 0, 2), (0, 2, 1))
_AFTER = compositions(_FACTORS, _PERMUTATIONS)


def _parities(generator, size):
    """Draws bits, `(length, 1)`; the targets are the parities of all prefixes."""
    bits = generator.integers(2, size=(size, LENGTH))
    return bits[..., None], np.cumsum(bits, axis=1) % 2


def _sums(generator, size):
    """Draws pairs of numbers as bits, the lowest first, `(length, 2)`.

    The targets are the bits of their sum, without the last carry.
    """
    first = generator.integers(2, size=(size, LENGTH))
    is_different = generator.random((size, LENGTH)) < _DIFFERENT_SHARE
    second = np.where(is_different, 1 - first, first)
    positions = np.arange(LENGTH)
    total = (first + second) @ (1 << positions)
    return np.stack([first, second], axis=-1), (total[:, None] >> positions) & 1


def _products(generator, size):
    """Draws one-hot factors, `(length, 3)`: permutations of three things.

    The target at a position is which of the six permutations the product of the factors
    up to it is, each after the one before.
    """
    factors = generator.integers(len(_FACTORS), size=(size, PRODUCT_LENGTH))
    return np.eye(len(_FACTORS))[factors], running_products(_AFTER, factors)


_CELL = unseeded(ConvolutionalCell)
PARITY = Task(drawn(_parities), _CELL, dense(2))
ADDITION = Task(drawn(_sums), _CELL, dense(2))
PERMUTATIONS = Task(drawn(_products), _CELL, dense(len(_PERMUTATIONS)))
