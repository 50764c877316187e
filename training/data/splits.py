"""Splits of labeled images, in memory or in the shards of a folder."""

import abc

import numpy as np
import tensorflow as tf

from ..errors import InputError
from ..files.input_file import check_file
from . import corruption
from .records.record_reader import Segment

_SHARDS_AT_ONCE = 16
_READ_AT_ONCE = 256


class Split(abc.ABC):
    """Labeled images in a fixed order, and the transform that streams apply.

    A split streams entries. An entry identifies one example (image and label),
    so that large images are read after shuffling.

    Args:
        transform: Object with the functions `evaluated(*example)`, which prepares
            examples for evaluation, and `augmented(*example, config, key)`, which
            changes them at random for training; the Boolean `of_batches`, whether both
            take batches of examples; and the Boolean `drops_remainder`, whether
            training drops a smaller last batch.
    """

    def __init__(self, transform):
        self.transform = transform

    @property
    def image_shape(self):
        """`(height, width, channels)` of the images in streams."""
        return self.transform.image_shape

    @abc.abstractmethod
    def __len__(self):
        """Returns the number of examples."""

    @abc.abstractmethod
    def part(self, start, stop):
        """Returns the split of the examples from `start` to before `stop`."""

    @abc.abstractmethod
    def in_order(self):
        """Returns the dataset of the entries, tuples, in their order."""

    @abc.abstractmethod
    def shuffled(self, key):
        """Returns the dataset in an order that depends on the int64 `(2,)` key only."""

    @abc.abstractmethod
    def loader(self):
        """Returns the function from the parts of an entry to the example."""


class IndexedSplit(Split):
    """A split whose entries are the indices of its examples."""

    def in_order(self):
        return tf.data.Dataset.from_tensor_slices((tf.range(len(self)),))

    def shuffled(self, key):
        order = tf.random.experimental.stateless_shuffle(tf.range(len(self)), key)
        return tf.data.Dataset.from_tensor_slices((order,))


class MemorySplit(IndexedSplit):
    """Labeled images of one size, in arrays. Entries are indices, or batches of them.

    Args:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: Array `(num_images, ...)`: int32 classes of the images, or uint8 classes
            of their pixels.
        transform: See `Split`.
    """

    def __init__(self, images, labels, transform):
        super().__init__(transform)
        self.images, self.labels = images, labels

    @property
    def image_shape(self):
        return self.images.shape[1:]

    def __len__(self):
        return len(self.labels)

    def part(self, start, stop):
        images, labels = self.images[start:stop], self.labels[start:stop]
        return MemorySplit(images, labels, self.transform)

    def loader(self):
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        return lambda index: (tf.gather(images, index), tf.gather(labels, index))


class ShardedSplit(Split):
    """Labeled images in TFRecord shards. Entries are the records.

    Args:
        reader: `RecordReader`, which makes the examples.
        segments: List of `Segment`s, in the order of the records.
        transform: See `Split`.
        shuffle_buffer: Positive integer. Records from which the next one is drawn.
    """

    def __init__(self, reader, segments, transform, shuffle_buffer):
        super().__init__(transform)
        self.reader = reader
        self.segments = segments
        self.shuffle_buffer = shuffle_buffer

    @classmethod
    def whole(cls, reader, shards, transform, shuffle_buffer):
        """Returns the split of all records of `Shards`."""
        segments = [
            Segment(str(file), 0, count, True)
            for file, count in zip(shards.files, shards.counts, strict=True)
        ]
        return cls(reader, segments, transform, shuffle_buffer)

    def __len__(self):
        return sum(segment.stop - segment.start for segment in self.segments)

    def part(self, start, stop):
        start, stop, _ = slice(start, stop).indices(len(self))
        parts, first = [], 0
        for file, begin, end, is_rest in self.segments:
            # Index in the file minus index in this split.
            offset = begin - first
            first += end - begin
            begin, last = max(begin, start + offset), min(end, stop + offset)
            if begin < last:
                parts.append(Segment(file, begin, last, is_rest and last == end))
        return ShardedSplit(self.reader, parts, self.transform, self.shuffle_buffer)

    def in_order(self):
        segments = tf.data.Dataset.from_tensor_slices(self._segment_tensors())
        return segments.flat_map(self.reader.read)

    def shuffled(self, key):
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
        return records.shuffle(min(self.shuffle_buffer, len(self)), seed)

    def loader(self):
        corruption.located_by(self._first_corrupt)
        return self.reader.decode

    def in_memory(self):
        """Returns the `MemorySplit` of the same examples.

        Raises:
            InputError: If a record cannot be used.
        """
        with corruption.reported():
            examples = self.in_order().map(
                self.loader(), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            )
            batches = list(examples.batch(_READ_AT_ONCE).as_numpy_iterator())
        images, labels = map(np.concatenate, zip(*batches, strict=True))
        return MemorySplit(images, labels, self.transform)

    def _first_corrupt(self):
        """Returns a sentence about the first unusable record, or `None`.

        Raises:
            InputError: If a file is gone, or cannot be opened.
        """
        for segment in self.segments:
            check_file(segment.file, "data file")
        segments = tf.data.Dataset.from_tensor_slices(self._segment_tensors())
        corrupt = segments.flat_map(
            lambda *segment: self.reader.examined(*segment, self.transform.evaluated)
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


def first(split, count, name):
    """Returns the first `count` examples of a split, or all of them for `None`.

    Args:
        split: `Split`.
        count: Optional positive integer.
        name: String. The name of `count` in the config.

    Raises:
        InputError: If the split has fewer examples.
    """
    if count is not None and count > len(split):
        raise InputError(
            f"`data.{name}` must be at most {len(split)}, the number of images there "
            f"are. Received: {name}={count}."
        )
    return split.part(0, count)
