"""Positions of a state that are padding."""

from typing import NamedTuple

import tensorflow as tf
from keras import tree

from deq_keras.structure import Nest


class Masked(NamedTuple):
    """An injection, and which positions of the state are no padding: what is constant
    in a solve of padded samples."""

    injection: Nest
    mask: tf.Tensor


def single_mask(mask: Nest | None) -> tf.Tensor | None:
    """Returns the mask that Keras found at the inputs, or `None`.

    Raises:
        ValueError: If several inputs have one.
    """
    masks = [leaf for leaf in tree.flatten(mask) if leaf is not None]
    if len(masks) > 1:
        raise ValueError(
            "Several inputs of a DEQ have a mask, and its state can have only one. "
            f"Pass it as `mask`. Received: {len(masks)} masks."
        )
    return tf.cast(masks[0], tf.bool) if masks else None


def masked(state: Nest, mask: tf.Tensor | None) -> Nest:
    """Zeroes the positions of a state that are padding.

    Args:
        state: Nest of `(batch, ...)` tensors.
        mask: Boolean tensor `(batch, ...)`, false at padding, or `None`. It holds for
            the leaves that have more axes than it.
    """
    if mask is None:
        return state

    def select(leaf: tf.Tensor) -> tf.Tensor:
        rank = mask.shape.rank
        missing = leaf.shape.rank - rank
        if missing < 1:
            return leaf
        if not mask.shape.is_compatible_with(leaf.shape[:rank]):
            raise ValueError(
                "A mask must have one entry for each position of the state. Expected: "
                f"shape={leaf.shape[:rank]}. Received: shape={mask.shape}."
            )
        # The shape comes from the state, so that another mask fails when it runs.
        shape = tf.concat([tf.shape(leaf)[:rank], [1] * missing], axis=0)
        return tf.where(tf.reshape(mask, shape), leaf, tf.zeros((), leaf.dtype))

    return tree.map_structure(select, state)
