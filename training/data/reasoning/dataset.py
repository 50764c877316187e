"""Adapt the examples of a reasoning task to TensorFlow, in batches."""

import tensorflow as tf

from ..pipeline import prefetch
from .task import Examples, held_out_examples, in_even_batches, training_batches


def training_dataset(task, levels, batch_size, seed, steps):
    """Returns the `tf.data.Dataset` of `training_batches`, for `fit`.

    Keras does not support generators whose batches differ in size. Batches are drawn
    ahead of training.

    Args:
        task: `ReasoningTask`.
        levels: List of levels of the task.
        batch_size: Positive integer.
        seed: Non-negative integer.
        steps: `range` of non-negative integers, the steps of the training.

    Example:

    >>> dataset = training_dataset(Mazes(), [5, 9], 8, seed=0, steps=range(100))
    >>> dataset.element_spec[0].shape
    TensorShape([8, None, None, 3])
    """
    batches = tf.data.Dataset.from_generator(
        lambda: training_batches(task, levels, batch_size, seed, steps),
        output_signature=example_specs(task, levels, batch_size),
    )
    # Without a known cardinality `fit` warns that the data ran out.
    counted = batches.apply(tf.data.experimental.assert_cardinality(len(steps)))
    return prefetch(counted)


def example_specs(task, levels, batch_size):
    """Returns the `tf.TensorSpec`s of inputs, targets and weights of a batch."""
    inputs = _shape(batch_size, map(task.input_shape, levels))
    positions = _shape(batch_size, map(task.positions, levels))
    return (
        tf.TensorSpec(inputs, "int32" if task.channels is None else "float32"),
        tf.TensorSpec(positions, "int32"),
        tf.TensorSpec(positions, "float32"),
    )


def in_batches(examples, size):
    """Splits `Examples` into batches; see `in_even_batches`."""
    return [Examples(*arrays) for arrays in in_even_batches(examples, size)]


def validation_batches(task, levels, size, seed):
    """Returns a dataset of inputs, targets and weights for a list of `LevelConfig`.

    The seed differs from the seed of the test examples.
    """
    whole = None
    for level in levels:
        examples = held_out_examples(task, level.level, level.examples, seed + 1)
        batches = tf.data.Dataset.from_tensor_slices(tuple(examples[:3])).batch(size)
        whole = batches if whole is None else whole.concatenate(batches)
    return whole


def _shape(batch_size, shapes):
    """Returns the shape of a batch; an axis that differs among levels is `None`."""
    axes = zip(*shapes, strict=True)
    return (batch_size, *(sizes[0] if len(set(sizes)) == 1 else None for sizes in axes))
