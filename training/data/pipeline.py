"""Streams of batches: shuffled and augmented for training, plain for evaluation."""

import math
from typing import NamedTuple

import tensorflow as tf
from keras import tree

from . import corruption


class BatchShard(NamedTuple):
    """One of `count` contiguous parts of every batch, of about equally many rows.

    The readers of all shards together produce the batches of a single reader.

    Attributes:
        index: Integer. The position of the part, counted from 0.
        count: Integer. The number of parts.
    """

    index: int = 0
    count: int = 1

    def bounds(self, size):
        """Returns the first row and the end of the part of a batch of `size` rows."""
        return size * self.index // self.count, size * (self.index + 1) // self.count

    def rows(self, *batch):
        """Returns the part of a nest of tensors `(batch, ...)`."""
        if self.count == 1:
            return batch

        def part(tensor):
            # A static size stays static.
            start, stop = self.bounds(tensor.shape[0] or tf.shape(tensor)[0])
            return tensor[start:stop]

        return tree.map_structure(part, batch)

    def entries(self, dataset, batch_size, num_entries):
        """Returns the entries of a dataset that will be rows of this shard.

        Args:
            dataset: `tf.data.Dataset` of at least `num_entries` entries, unbatched.
            batch_size: Integer. Entries of all shards together, a multiple of `count`.
            num_entries: Integer. Further entries are left out.
        """
        if self.count == 1:
            return dataset

        def is_own(number, entry):
            del entry
            row = number % batch_size
            size = tf.minimum(
                tf.cast(batch_size, row.dtype), num_entries - number + row
            )
            start, stop = self.bounds(size)
            return (start <= row) & (row < stop)

        own = dataset.enumerate().filter(is_own)
        return own.map(lambda number, entry: entry)


WHOLE = BatchShard()


def steps_per_epoch(split, batch_size, drop_remainder=False):
    """Returns the number of batches in a pass over the training images.

    The last one may be smaller; if it is dropped, it does not count.
    """
    num_batches = len(split) / batch_size
    is_dropped = drop_remainder or split.transform.drops_remainder
    return math.floor(num_batches) if is_dropped else math.ceil(num_batches)


def training_batches(
    split,
    batch_size,
    augmentation,
    seed,
    steps,
    drop_remainder=False,
    shard=WHOLE,
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
        shard: The `BatchShard` to produce. If images are prepared one by one, images of
            other shards are skipped.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 pixels `(batch, height,
        width, channels)` and int32 `(batch,)`, or `(batch, height, width)` for labels
        of pixels.
    """
    load, transform = split.loader(), split.transform
    seed = tf.constant(seed, tf.int64)
    pass_steps = steps_per_epoch(split, batch_size, drop_remainder)
    num_entries = min(pass_steps * batch_size, len(split))
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
            return _map(stream, lambda *batch: shard.rows(*augment(*batch)))
        skipped *= batch_size
        stream = stream.enumerate(number * len(split)).skip(skipped)
        stream = shard.entries(stream, batch_size, num_entries - skipped)
        stream = _map(stream, augment)
        return stream.batch(batch_size // shard.count, drop_remainder)

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


def evaluation_batches(split, batch_size, shard=WHOLE):
    """Returns a `tf.data.Dataset` of `(images, labels)` in their order.

    Args:
        split: `Split`.
        batch_size: Positive integer. Images per batch.
        shard: The `BatchShard` to produce.
    """
    load, transform = split.loader(), split.transform

    def prepare(*entry):
        return transform.prepare(*load(*entry))

    if transform.of_batches:
        batches = split.in_order().batch(batch_size)
        batches = _map(batches, lambda *batch: prepare(*shard.rows(*batch)))
    else:
        stream = shard.entries(split.in_order(), batch_size, len(split))
        batches = _map(stream, prepare).batch(batch_size // shard.count)
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
