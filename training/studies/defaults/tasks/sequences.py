"""Sequences whose label at a position hangs on all positions before it."""

import itertools

import numpy as np

from ..cells import ConvolutionalCell
from .task import Task, dense, drawn, unseeded

LENGTH = 16
PRODUCT_LENGTH = 12
# Of two bits. The carry goes on as long as they do, 5 positions in the mean; of fair
# bits it would be 2.
_DIFFERENT_SHARE = 0.8

FACTORS = tuple(itertools.permutations(range(3)))
# The index of p after q, i -> p[q[i]], at the indices of p and q.
_AFTER = np.array(
    [[FACTORS.index(tuple(p[i] for i in q)) for q in FACTORS] for p in FACTORS]
)


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
    """Draws permutations of three, one-hot, `(length, 6)`.

    The target at a position is the product of those up to it, each after the one
    before.
    """
    factors = generator.integers(len(_AFTER), size=(size, PRODUCT_LENGTH))
    products = list(itertools.accumulate(factors.T, lambda q, p: _AFTER[p, q]))
    return np.eye(len(_AFTER))[factors], np.stack(products, axis=1)


_CELL = unseeded(ConvolutionalCell)
PARITY = Task(drawn(_parities), _CELL, dense(2))
ADDITION = Task(drawn(_sums), _CELL, dense(2))
PERMUTATIONS = Task(drawn(_products), _CELL, dense(len(_AFTER)))
