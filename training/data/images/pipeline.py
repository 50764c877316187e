"""Streams of batches: shuffled and augmented for training, plain for evaluation.

A split is a `Split`, in memory, or a `StreamedSplit`, read from disk.
"""

import math

import tensorflow as tf

from ..records import damage


def steps_per_epoch(split, batch_size):
    """Returns how many batches an epoch has; the last may be smaller."""
    return math.ceil(len(split) / batch_size)


def training_batches(split, batch_size, augmentation, seed, epochs):
    """Streams the batches of some epochs, one epoch after the other.

    The order of the images and their augmentation are functions of `(seed, epoch)`
    alone, so a resumed run sees what an uninterrupted one would have seen.

    Args:
        split: the split to draw from.
        batch_size: images a batch. The last batch of an epoch may be smaller.
        augmentation: an `AugmentationConfig`.
        seed: int.
        epochs: a `range` of epochs.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, channels)` and int32 `(batch,)`.
    """
    batches = split.training_batches(batch_size, augmentation, seed, epochs)
    return batches.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(split, batch_size):
    """Returns a `tf.data.Dataset` of `(images, labels)` in their order."""
    return split.evaluation_batches(batch_size).prefetch(tf.data.AUTOTUNE)


def sample(split, count):
    """Returns the first images of a split as a float32 tensor of at most `count`."""
    with damage.reported():
        (images, _), *_ = split.part(0, count).evaluation_batches(count).take(1)
    return images
