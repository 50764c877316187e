"""Streams of batches: shuffled and augmented for training, whole for evaluation.

A split is a `MemorySplit` or a `ShardedSplit`.
"""

import tensorflow as tf

from .augmentation import augment


def steps_per_epoch(split, batch_size):
    """Returns how many batches an epoch has; images that are left over are skipped."""
    return len(split) // batch_size


def training_batches(split, batch_size, augmentation, crop_size, seed, epochs):
    """Streams the batches of some epochs, one epoch after the other.

    The order of the images and their augmentation are functions of `(seed, epoch)`
    alone, so a resumed run sees what an uninterrupted one would have seen.

    Args:
        split: the split to draw from.
        batch_size: images a batch.
        augmentation: a `SegmentationAugmentationConfig`.
        crop_size: `(height, width)`.
        seed: int.
        epochs: a `range` of epochs.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, 3)` and int32 `(batch, height, width)`.
    """
    seed = tf.constant(seed, tf.int64)

    def augmented(number, example):
        key = tf.stack([seed, number])
        return augment(*example, augmentation, crop_size, key)

    def epoch_batches(epoch):
        stream = split.shuffled(tf.stack([seed, epoch]))
        # Numbers the images of the whole run: each gets its own augmentation.
        stream = stream.enumerate(epoch * len(split))
        stream = stream.map(
            augmented, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return stream.batch(batch_size, drop_remainder=True)

    batches = tf.data.Dataset.range(epochs.start, epochs.stop).flat_map(epoch_batches)
    return batches.map(_as_numbers).prefetch(tf.data.AUTOTUNE)


def evaluation_batches(split, batch_size):
    """Returns a `tf.data.Dataset` of the whole images and labels in their order."""
    batches = split.in_order().batch(batch_size)
    return batches.map(_as_numbers).prefetch(tf.data.AUTOTUNE)


def _as_numbers(images, labels):
    return tf.cast(images, tf.float32), tf.cast(labels, tf.int32)
