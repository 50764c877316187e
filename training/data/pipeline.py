"""Streams of batches: shuffled and augmented for training, plain for evaluation."""

import math

import tensorflow as tf

from .records import damage


def steps_per_epoch(split, batch_size):
    """Returns how many batches an epoch of training has.

    The last one may be smaller; where the split drops it, it does not count.
    """
    num_batches = len(split) / batch_size
    floor_or_ceil = math.floor if split.transform.drops_remainder else math.ceil
    return floor_or_ceil(num_batches)


def training_batches(split, batch_size, augmentation, seed, epochs):
    """Streams the batches of some epochs, one epoch after the other.

    The order of the images and their augmentation are functions of `(seed, epoch)`
    alone, so a resumed run sees what an uninterrupted one would have seen.

    Args:
        split: the `Split` to draw from.
        batch_size: int. Images a batch.
        augmentation: the augmentation config that the split's transform takes.
        seed: int.
        epochs: a `range` of epochs.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, channels)` and int32 `(batch,)`, or `(batch, height, width)` where every
        pixel has one.
    """
    load, transform = split.loader(), split.transform
    seed = tf.constant(seed, tf.int64)

    def augmented(number, entry):
        return transform.augmented(
            *load(*entry), augmentation, tf.stack([seed, number])
        )

    def epoch_batches(epoch):
        stream = split.shuffled(tf.stack([seed, epoch]))
        # Numbered over the whole run: each has an augmentation of its own.
        if transform.of_batches:
            stream = stream.batch(batch_size, transform.drops_remainder)
            stream = stream.enumerate(epoch * steps_per_epoch(split, batch_size))
            return _mapped(stream, augmented)
        stream = _mapped(stream.enumerate(epoch * len(split)), augmented)
        return stream.batch(batch_size, transform.drops_remainder)

    stream = tf.data.Dataset.range(epochs.start, epochs.stop).flat_map(epoch_batches)
    return stream.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(split, batch_size):
    """Returns a `tf.data.Dataset` of `(images, labels)` in their order."""
    load, transform = split.loader(), split.transform

    def evaluated(*entry):
        return transform.evaluated(*load(*entry))

    if transform.of_batches:
        batches = _mapped(split.in_order().batch(batch_size), evaluated)
    else:
        batches = _mapped(split.in_order(), evaluated).batch(batch_size)
    # Without it Keras takes the end of the images for missing ones, and warns.
    size = tf.data.experimental.assert_cardinality(math.ceil(len(split) / batch_size))
    return batches.apply(size).prefetch(tf.data.AUTOTUNE)


def sample(split, count):
    """Returns the first images of a split as a float32 tensor of at most `count`."""
    with damage.reported():
        (images, _), *_ = evaluation_batches(split.part(0, count), count).take(1)
    return images


def _mapped(dataset, function):
    return dataset.map(
        function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
