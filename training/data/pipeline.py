"""Streams of batches: shuffled and augmented for training, plain for evaluation."""

import math

import tensorflow as tf
from keras import tree

from . import corruption


def steps_per_epoch(split, batch_size, drop_remainder=False):
    """Returns the number of batches in a pass over the training images.

    The last one may be smaller; if it is dropped, it does not count.
    """
    num_batches = len(split) / batch_size
    is_dropped = drop_remainder or split.transform.drops_remainder
    return math.floor(num_batches) if is_dropped else math.ceil(num_batches)


def training_batches(
    split, batch_size, augmentation, seed, steps, drop_remainder=False
):
    """Streams the batches of some training steps, one pass over the images after the
    other.

    The order of the images and their augmentation depend only on the seed and the pass
    over the images, so a resumed run sees the same batches as an uninterrupted run.

    Args:
        split: `Split` to draw from.
        batch_size: Positive integer. Images per batch.
        augmentation: The augmentation config that the split's transform takes.
        seed: Integer.
        steps: `range` of steps, counted from the start of the training.
        drop_remainder: Boolean. Whether a smaller batch at the end of a pass is
            dropped even if the split keeps it.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, channels)` and int32 `(batch,)`, or `(batch, height, width)` for labels
        of pixels.
    """
    load, transform = split.loader(), split.transform
    seed = tf.constant(seed, tf.int64)
    pass_steps = steps_per_epoch(split, batch_size, drop_remainder)
    first, num_skipped = divmod(steps.start, pass_steps)
    passes = range(first, math.ceil(steps.stop / pass_steps))

    def augment(number, entry):
        return transform.augment(*load(*entry), augmentation, tf.stack([seed, number]))

    def pass_batches(number):
        stream = split.shuffle(tf.stack([seed, number]))
        skipped = tf.where(number == first, tf.constant(num_skipped, tf.int64), 0)
        # Batches are numbered over the whole run: each gets its own augmentation.
        if transform.of_batches:
            stream = stream.batch(batch_size, drop_remainder)
            stream = stream.enumerate(number * pass_steps).skip(skipped)
            return _map(stream, augment)
        skipped *= batch_size
        stream = stream.enumerate(number * len(split)).skip(skipped)
        return _map(stream, augment).batch(batch_size, drop_remainder)

    drop_remainder = drop_remainder or transform.drops_remainder
    stream = tf.data.Dataset.range(passes.start, passes.stop).flat_map(pass_batches)
    return prefetch(stream.take(len(steps)))


def array_batches(arrays, batch_size, seed, steps):
    """Streams the batches of some training steps from arrays, pass after pass.

    The order depends only on `(seed, pass)`. The last batch of a pass may be smaller.

    Args:
        arrays: Tuple of arrays `(num_examples, ...)`, or of dicts of them.
        batch_size: Positive integer.
        seed: Integer.
        steps: `range` of steps, counted from the start of the training.

    Returns:
        A `tf.data.Dataset` of tuples.
    """
    num_examples = len(tree.flatten(arrays)[0])
    first, offset = divmod(steps.start, math.ceil(num_examples / batch_size))
    arrays = tree.map_structure(tf.constant, tuple(arrays))
    seed = tf.constant(seed, tf.int64)

    def one_pass(number):
        key = tf.stack([seed, number])
        order = tf.random.experimental.stateless_shuffle(tf.range(num_examples), key)
        return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

    passes = tf.data.Dataset.range(first, tf.int64.max)
    batches = passes.flat_map(one_pass).skip(offset).take(len(steps))
    batches = batches.map(
        lambda rows: tree.map_structure(lambda one: tf.gather(one, rows), arrays)
    )
    # Without a known cardinality Keras warns that the data ran out.
    size = tf.data.experimental.assert_cardinality(len(steps))
    return prefetch(batches.apply(size))


def evaluation_batches(split, batch_size):
    """Returns a `tf.data.Dataset` of `(images, labels)` in their order.

    Args:
        split: `Split`.
        batch_size: Positive integer. Images per batch.
    """
    load, transform = split.loader(), split.transform

    def prepare(*entry):
        return transform.prepare(*load(*entry))

    if transform.of_batches:
        batches = _map(split.in_order().batch(batch_size), prepare)
    else:
        batches = _map(split.in_order(), prepare).batch(batch_size)
    # Without a known cardinality Keras warns that the data ran out.
    size = tf.data.experimental.assert_cardinality(math.ceil(len(split) / batch_size))
    return prefetch(batches.apply(size))


def sample(split, count):
    """Returns the first images of a split as a float32 tensor of at most `count`."""
    with corruption.locating():
        (images, _), *_ = evaluation_batches(split.part(0, count), count).take(1)
    return images


def prefetch(dataset):
    """Returns a dataset that is read ahead.

    Every stream ends here. TensorFlow's autotuner stays off: who deletes an iterator
    waits for its thread, which may sleep for ten seconds (TensorFlow 2.21). Without it,
    `AUTOTUNE` means as many parallel calls as cores.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def _map(dataset, function):
    return dataset.map(
        function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
