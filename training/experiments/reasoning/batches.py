"""Examples in batches, as `fit` and evaluations take them."""

import numpy as np
import tensorflow as tf

from ...data.reasoning import Examples, held_out_examples


def in_batches(examples, size):
    """Returns `Examples` in parts of almost one size, at most `size`.

    A part is of one example only where there are no two, if `size` is 3 or more.
    """
    num_batches = -(-len(examples.inputs) // size)
    return [
        Examples(*arrays)
        for arrays in zip(
            *(np.array_split(array, num_batches) for array in examples), strict=True
        )
    ]


def validation_batches(task, levels, size, seed):
    """Returns the dataset of inputs, targets and weights of a list of `LevelConfig`.

    They differ from the test examples.
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
