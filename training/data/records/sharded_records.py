"""Stream the records of TFRecord shards, in order or shuffled."""

import numpy as np
import tensorflow as tf

from ...files.input_file import check_file
from .record_reader import Segment

_SHARDS_AT_ONCE = 16


class ShardedRecords:
    """Some of the records of shards.

    Args:
        reader: `RecordReader`.
        segments: List of `Segment`s, in the order of the records.
    """

    def __init__(self, reader, segments):
        self.reader = reader
        self.segments = segments

    @classmethod
    def whole(cls, reader, files, counts):
        """Returns all records of files that hold `counts` of them."""
        pairs = zip(files, counts, strict=True)
        return cls(
            reader, [Segment(str(file), 0, count, True) for file, count in pairs]
        )

    def __len__(self):
        return sum(segment.stop - segment.start for segment in self.segments)

    def part(self, start, stop):
        """Returns the records from `start` to before `stop`."""
        start, stop, _ = slice(start, stop).indices(len(self))
        parts, first = [], 0
        for file, begin, end, is_rest in self.segments:
            # Index in the file minus index in this collection.
            offset = begin - first
            first += end - begin
            begin, last = max(begin, start + offset), min(end, stop + offset)
            if begin < last:
                parts.append(Segment(file, begin, last, is_rest and last == end))
        return ShardedRecords(self.reader, parts)

    def in_order(self):
        """Returns the dataset of the records in their order."""
        segments = tf.data.Dataset.from_tensor_slices(self._segment_tensors())
        return segments.flat_map(self.reader.read)

    def shuffled(self, key, buffer_size):
        """Returns the dataset of the records in an order that depends on the key only.

        Args:
            key: int64 tensor of shape `(2,)`.
            buffer_size: Positive integer. Records from which the next one is drawn.
        """
        # Sets the seed of this epoch's graph; `shuffle` would use the process' seed.
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
        return records.shuffle(min(buffer_size, len(self)), seed)

    def first_corrupt(self, use):
        """Returns a sentence about the first unusable record, or `None`.

        Args:
            use: Function of the parts of an example. If it fails, the record cannot be
                used.

        Raises:
            InputError: if a file is gone, or cannot be opened.
        """
        for segment in self.segments:
            check_file(segment.file, "data file")
        segments = tf.data.Dataset.from_tensor_slices(self._segment_tensors())
        corrupt = segments.flat_map(
            lambda *segment: self.reader.examined(*segment, use)
        )
        for file, index, error in corrupt.take(1).as_numpy_iterator():
            return (
                f"{error.decode()} File and record: {file.decode()} {index}. Replace "
                "the record, or write the file without it."
            )
        return None

    def _segment_tensors(self):
        files, starts, stops, are_rests = zip(*self.segments, strict=True)
        return (
            tf.constant(files),
            tf.constant(np.array(starts, "int64")),
            tf.constant(np.array(stops, "int64")),
            tf.constant(are_rests),
        )
