"""Tasks on sequences, whose labels depend on other positions."""

import keras
import numpy as np
from keras_hub.layers import TransformerEncoder

from deq_keras.layers import TransformerCell, cell_from

from .task import Task, convolution_cell, dense, draw_with

_LENGTH = 16
_TOKENS = 12
_HEADS = 4


def _parities(generator, size):
    """Draws bits, `(length, 1)`; the targets are the parities of all prefixes."""
    bits = generator.integers(2, size=(size, _LENGTH))
    return bits[..., None], np.cumsum(bits, axis=1) % 2


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


TASKS = {
    "brackets": Task(
        draw_with(_brackets),
        lambda units: cell_from(TransformerEncoder(2 * units, _HEADS), name="cell"),
        dense(2),
        _stem,
    ),
    "parity": Task(draw_with(_parities), convolution_cell(1), dense(2)),
    "seen_before": Task(
        draw_with(_seen_before),
        lambda units: TransformerCell(units, _HEADS, 2 * units, name="cell"),
        dense(2),
        _stem,
    ),
}
