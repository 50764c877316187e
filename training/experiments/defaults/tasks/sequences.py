"""Tasks on sequences and chains, whose labels depend on other positions."""

import functools
import itertools

import keras
import numpy as np
from keras_hub.layers import TransformerEncoder

from deq_keras.layers import TransformerCell, cell_from

from ....data.reasoning import (
    Chains,
    chain_adjacency,
    compositions,
    draw_chains,
    running_products,
)
from ..cells import AttentionCell, ConvolutionalCell, MessagePassingCell
from .task import Task, cell_of, dense, drawn

_LENGTH = 16
_PRODUCT_LENGTH = 12
# Fraction of positions whose two bits differ. A carry then travels 10 positions on
# average; with fair bits, it would travel 2.
_DIFFERENT_SHARE = 0.9

_PERMUTATIONS = tuple(itertools.permutations(range(3)))
# The identity and the two swaps of neighbors; their products are all permutations.
_FACTORS = ((0, 1, 2), (1, 0, 2), (0, 2, 1))
_AFTER = compositions(_FACTORS, _PERMUTATIONS)

_SORTED_LENGTH = 8
_SYMBOLS = 4
_TOKENS = 12
_HEADS = 4
_CHAIN_LENGTH = 8
_CHAINS = 3


def _parities(generator, size):
    """Draws bits, `(length, 1)`; the targets are the parities of all prefixes."""
    bits = generator.integers(2, size=(size, _LENGTH))
    return bits[..., None], np.cumsum(bits, axis=1) % 2


def _sums(generator, size):
    """Draws pairs of numbers as bits, the lowest first, `(length, 2)`.

    The targets are the bits of their sum, without the last carry.
    """
    first = generator.integers(2, size=(size, _LENGTH))
    is_different = generator.random((size, _LENGTH)) < _DIFFERENT_SHARE
    second = np.where(is_different, 1 - first, first)
    positions = np.arange(_LENGTH)
    total = (first + second) @ (1 << positions)
    return np.stack([first, second], axis=-1), (total[:, None] >> positions) & 1


def _products(generator, size):
    """Draws one-hot factors, `(length, 3)`: permutations of three items.

    The target at a position is the index of the product of all factors up to it, one of
    six permutations. Each factor applies after the previous one.
    """
    factors = generator.integers(len(_FACTORS), size=(size, _PRODUCT_LENGTH))
    return np.eye(len(_FACTORS))[factors], running_products(_AFTER, factors)


def _sorted_symbols(generator, size):
    """Draws one-hot symbols beside one-hot positions, `(length, symbols + length)`.

    The targets are the symbols in ascending order, `(length,)`.
    """
    symbols = generator.integers(_SYMBOLS, size=(size, _SORTED_LENGTH))
    return _with_positions(symbols, _SYMBOLS), np.sort(symbols, axis=1)


def _seen_before(generator, size):
    """Draws one-hot tokens beside one-hot positions, `(length, tokens + length)`.

    The target at a position is whether an earlier position has the same token.
    """
    tokens = generator.integers(_TOKENS, size=(size, _LENGTH))
    is_equal = tokens[:, :, None] == tokens[:, None, :]
    targets = np.tril(is_equal, -1).any(axis=-1).astype("int32")
    return _with_positions(tokens, _TOKENS), targets


def _brackets(generator, size):
    """Draws one-hot brackets beside one-hot positions, `(length, 2 + length)`.

    The target at a position is whether its bracket has a partner.
    """
    is_opening = generator.integers(2, size=(size, _LENGTH))
    steps = 2 * is_opening - 1
    after = np.cumsum(steps, axis=1)
    lowest_later = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
    lowest_before = np.minimum.accumulate(after - steps, axis=1)
    # The partner of an opening bracket is where the depth falls below its own. A
    # closing bracket without a partner is where the depth is lower than ever before.
    has_partner = np.where(is_opening, lowest_later < after, lowest_before <= after)
    return _with_positions(is_opening, 2), has_partner.astype("int32")


def _with_positions(tokens, num_tokens):
    size, length = tokens.shape
    positions = np.broadcast_to(np.eye(length), (size, length, length))
    return np.concatenate([np.eye(num_tokens)[tokens], positions], axis=-1)


def _stem(inputs, units):
    return keras.layers.Dense(units, name="stem")(inputs)


def _transformer_cell(units):
    return TransformerCell(units, _HEADS, 2 * units, name="cell")


def _encoder_cell(units):
    return cell_from(TransformerEncoder(2 * units, _HEADS), name="cell")


_CONVOLUTIONS = cell_of(ConvolutionalCell)
_CHAIN = functools.partial(draw_chains, chains=_CHAINS, length=_CHAIN_LENGTH)
_MESSAGES = cell_of(
    MessagePassingCell, adjacency=chain_adjacency(_CHAINS, _CHAIN_LENGTH)
)
TASKS = {
    "addition": Task(drawn(_sums), _CONVOLUTIONS, dense(2)),
    "brackets": Task(drawn(_brackets), _encoder_cell, dense(2), _stem),
    "chain": Task(drawn(_CHAIN), _MESSAGES, dense(Chains.num_classes)),
    "parity": Task(drawn(_parities), _CONVOLUTIONS, dense(2)),
    "permutations": Task(drawn(_products), _CONVOLUTIONS, dense(len(_PERMUTATIONS))),
    "seen_before": Task(drawn(_seen_before), _transformer_cell, dense(2), _stem),
    "sorting": Task(drawn(_sorted_symbols), cell_of(AttentionCell), dense(_SYMBOLS)),
}
