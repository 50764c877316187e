"""Streams of batches: shuffled and augmented for training, plain for evaluation."""

import math

import tensorflow as tf

from training.data.augmentation import augment


def steps_per_epoch(split, batch_size):
    """Returns how many batches an epoch has; the last may be smaller."""
    return math.ceil(len(split) / batch_size)


def training_batches(split, batch_size, augmentation, seed, epochs):
    """Streams the batches of some epochs, one epoch after the other.

    The order of the images and their augmentation are functions of `(seed, epoch)`
    alone, so a resumed run sees what an uninterrupted one would have seen.

    Args:
        split: the `Split` to draw from.
        batch_size: images a batch. The last batch of an epoch may be smaller.
        augmentation: an `AugmentationConfig`.
        seed: int.
        epochs: a `range` of epochs.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, channels)` and int32 `(batch,)`.
    """
    images, labels = tf.constant(split.images), tf.constant(split.labels)
    indices = tf.range(len(split))
    seed = tf.constant(seed, tf.int64)
    first_step = epochs.start * steps_per_epoch(split, batch_size)

    def shuffled(epoch):
        order = tf.random.experimental.stateless_shuffle(
            indices, tf.stack([seed, epoch])
        )
        return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

    def batch(step, chosen):
        key = tf.stack([seed, step])
        pixels = augment(tf.gather(images, chosen), augmentation, key)
        return tf.cast(pixels, tf.float32), tf.gather(labels, chosen)

    stream = tf.data.Dataset.range(epochs.start, epochs.stop).flat_map(shuffled)
    stream = stream.enumerate(first_step)
    stream = stream.map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    return stream.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(split, batch_size):
    """Returns a `tf.data.Dataset` of `(images, labels)` in their order."""
    dataset = tf.data.Dataset.from_tensor_slices((split.images, split.labels))
    dataset = dataset.batch(batch_size).map(
        lambda images, labels: (tf.cast(images, tf.float32), labels)
    )
    return dataset.prefetch(tf.data.AUTOTUNE)
