"""Batches of examples for validation and evaluation."""

import numpy as np
import tensorflow as tf

from ...data.reasoning import Examples, held_out_examples


def in_batches(examples, size):
    """Splits `Examples` into batches of almost equal size, at most `size` each.

    If `size` is at least 3, a batch of one example occurs only if there is just one.
    """
    num_batches = -(-len(examples.inputs) // size)
    return [
        Examples(*arrays)
        for arrays in zip(
            *(np.array_split(array, num_batches) for array in examples), strict=True
        )
    ]


def validation_batches(task, levels, size, seed):
    """Returns a dataset of inputs, targets and weights for a list of `LevelConfig`.

    The seed differs from the seed of the test examples.
    """
    batches = [
        _dataset(held_out_examples(task, level.level, level.examples, seed + 1), size)
        for level in levels
    ]
    whole = batches[0]
    for further in batches[1:]:
        whole = whole.concatenate(further)
    return whole


def _dataset(examples, size):
    return tf.data.Dataset.from_tensor_slices(tuple(examples[:3])).batch(size)
