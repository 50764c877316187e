"""Streams of batches: shuffled and augmented for training, plain for evaluation."""

import math

import tensorflow as tf

from .records import damage
from .share import WHOLE


def steps_per_epoch(split, batch_size, drop_remainder=False):
    """Returns how many batches an epoch of training has.

    The last one may be smaller; where it is dropped, it does not count.
    """
    num_batches = len(split) / batch_size
    is_dropped = drop_remainder or split.transform.drops_remainder
    return math.floor(num_batches) if is_dropped else math.ceil(num_batches)


def training_batches(
    split, batch_size, augmentation, seed, epochs, drop_remainder=False, share=WHOLE
):
    """Streams the batches of some epochs, one epoch after the other.

    The order of the images and their augmentation are functions of `(seed, epoch)`
    alone, so a resumed run sees what an uninterrupted one would have seen.

    Args:
        split: the `Split` to draw from.
        batch_size: int. Images a batch.
        augmentation: the augmentation config that the split's transform takes.
        seed: int.
        epochs: a `range` of epochs.
        drop_remainder: bool. Whether a smaller batch at the end of an epoch is dropped
            even where the split does not.
        share: the `Share` of every batch that is made. Where images are prepared one by
            one, those of other shares are not.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, channels)` and int32 `(batch,)`, or `(batch, height, width)` where every
        pixel has one.
    """
    load, transform = split.loader(), split.transform
    seed = tf.constant(seed, tf.int64)
    num_steps = steps_per_epoch(split, batch_size, drop_remainder)
    num_entries = min(num_steps * batch_size, len(split))

    def augmented(number, entry):
        return transform.augmented(
            *load(*entry), augmentation, tf.stack([seed, number])
        )

    def epoch_batches(epoch):
        stream = split.shuffled(tf.stack([seed, epoch]))
        # Numbered over the whole run: each has an augmentation of its own.
        if transform.of_batches:
            stream = stream.batch(batch_size, drop_remainder)
            stream = stream.enumerate(epoch * num_steps)
            return _mapped(stream, lambda *batch: share.rows(*augmented(*batch)))
        stream = stream.enumerate(epoch * len(split))
        stream = share.entries(stream, batch_size, num_entries)
        stream = _mapped(stream, augmented)
        return stream.batch(batch_size // share.count, drop_remainder)

    drop_remainder = drop_remainder or transform.drops_remainder
    stream = tf.data.Dataset.range(epochs.start, epochs.stop).flat_map(epoch_batches)
    return stream.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(split, batch_size, share=WHOLE):
    """Returns a `tf.data.Dataset` of `(images, labels)` in their order.

    Args:
        split: the `Split`.
        batch_size: int. Images a batch.
        share: the `Share` of every batch that is made.
    """
    load, transform = split.loader(), split.transform

    def evaluated(*entry):
        return transform.evaluated(*load(*entry))

    if transform.of_batches:
        batches = split.in_order().batch(batch_size)
        batches = _mapped(batches, lambda *batch: evaluated(*share.rows(*batch)))
    else:
        stream = share.entries(split.in_order(), batch_size, len(split))
        batches = _mapped(stream, evaluated).batch(batch_size // share.count)
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
