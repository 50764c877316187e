"""Labelled images on disk, too many for the memory."""

import numpy as np
import tensorflow as tf

from training.data import image_transforms, jpeg
from training.data.record_reader import Segment

# Records from which the next one is drawn: with ImageNet's JPEG files, 0.9 GB.
SHUFFLE_BUFFER = 8192
_SHARDS_AT_ONCE = 16


class StreamedSplit:
    """Images of any size in TFRecord shards, streamed as squares of one size.

    Args:
        reader: a `RecordReader`.
        segments: list of `Segment`s, in the order of the images.
        image_size: int. Side of the squares.
    """

    def __init__(self, reader, segments, image_size):
        self.reader = reader
        self.segments = segments
        self.image_size = image_size

    def __len__(self):
        return sum(segment.stop - segment.start for segment in self.segments)

    @property
    def image_shape(self):
        """`(height, width, channels)` of the images that the streams hold."""
        return (self.image_size, self.image_size, 3)

    def part(self, start, stop):
        """Returns the images from `start` to before `stop`."""
        start, stop, _ = slice(start, stop).indices(len(self))
        parts, first = [], 0
        for file, begin, end in self.segments:
            # Index in the file minus index in the split.
            offset = begin - first
            first += end - begin
            begin, end = max(begin, start + offset), min(end, stop + offset)
            if begin < end:
                parts.append(Segment(file, begin, end))
        return StreamedSplit(self.reader, parts, self.image_size)

    def training_batches(self, batch_size, augmentation, seed, epochs):
        """See `training.data.training_batches`."""
        seed = tf.constant(seed, tf.int64)

        def example(number, record):
            file, index, encoded, label = record
            encoded = jpeg.checked(encoded, file, index)
            key = tf.stack([seed, number])
            return self._augmented(encoded, augmentation, key), label

        def epoch_batches(epoch):
            stream = self._shuffled(tf.stack([seed, epoch]))
            # Numbers the examples of the whole run: each gets its own augmentation.
            stream = stream.enumerate(epoch * len(self))
            return _parallel_map(stream, example).batch(batch_size)

        stream = tf.data.Dataset.range(epochs.start, epochs.stop)
        return stream.flat_map(epoch_batches)

    def evaluation_batches(self, batch_size):
        """See `training.data.evaluation_batches`."""

        def example(file, index, encoded, label):
            encoded = jpeg.checked(encoded, file, index)
            image = image_transforms.resized_center_crop(encoded, self.image_size)
            return image, label

        segments = tf.data.Dataset.from_tensor_slices(self._segment_tensors())
        records = segments.flat_map(self.reader.read)
        batches = _parallel_map(records, example).batch(batch_size)
        # Without it Keras takes the end of the images for missing ones, and warns.
        return batches.apply(
            tf.data.experimental.assert_cardinality(-(-len(self) // batch_size))
        )

    def _augmented(self, encoded, augmentation, key):
        crop_key, flip_key = tf.unstack(tf.random.split(key))
        if augmentation.resized_crop:
            image = image_transforms.random_resized_crop(
                encoded, self.image_size, crop_key
            )
        else:
            image = image_transforms.resized_center_crop(encoded, self.image_size)
        if augmentation.horizontal_flip:
            image = image_transforms.random_flip(image, flip_key)
        return image

    def _shuffled(self, key):
        """The records in an order that is a function of the key."""
        # Of the graph of one epoch, which `shuffle` would take from the process.
        tf.random.set_seed(1)
        shards_key, records_key = tf.unstack(tf.random.split(key))
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(self.segments)), shards_key
        )
        segments = tf.data.Dataset.from_tensor_slices(
            tuple(tf.gather(part, order) for part in self._segment_tensors())
        )
        records = segments.interleave(
            self.reader.read,
            cycle_length=min(_SHARDS_AT_ONCE, len(self.segments)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        seed = tf.random.stateless_uniform([], records_key, None, None, tf.int64)
        return records.shuffle(min(SHUFFLE_BUFFER, len(self)), seed)

    def _segment_tensors(self):
        files, starts, stops = zip(*self.segments, strict=True)
        return (
            tf.constant(files),
            tf.constant(np.array(starts, "int64")),
            tf.constant(np.array(stops, "int64")),
        )


def _parallel_map(dataset, function):
    return dataset.map(
        function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
