"""Labelled images on disk, too many for the memory."""

import numpy as np
import tensorflow as tf

from training.data.record_reader import Segment

# Records from which the next one is drawn: with the PNG files of Cityscapes, 1.2 GB.
SHUFFLE_BUFFER = 512
_SHARDS_AT_ONCE = 16


class ShardedSplit:
    """Images of one size with a label for every pixel, in TFRecord shards.

    Args:
        reader: an `ExampleReader`.
        segments: list of `Segment`s, in the order of the images.
    """

    def __init__(self, reader, segments):
        self.reader = reader
        self.segments = segments

    def __len__(self):
        return sum(segment.stop - segment.start for segment in self.segments)

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
        return ShardedSplit(self.reader, parts)

    def in_order(self):
        """Returns the dataset of the `(image, labels)` of all images in their order."""
        segments = tf.data.Dataset.from_tensor_slices(self._segment_tensors())
        return self._decoded(segments.flat_map(self.reader.read))

    def shuffled(self, key):
        """Returns them in an order that is a function of the int64 `(2,)` key."""
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
        return self._decoded(records.shuffle(min(SHUFFLE_BUFFER, len(self)), seed))

    def _decoded(self, records):
        return records.map(
            self.reader.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def _segment_tensors(self):
        files, starts, stops = zip(*self.segments, strict=True)
        return (
            tf.constant(files),
            tf.constant(np.array(starts, "int64")),
            tf.constant(np.array(stops, "int64")),
        )
