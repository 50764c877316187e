"""Reads labelled JPEG files from TFRecord shards, one at a time and in order.

An error of TensorFlow's readers does not tell which of the shards it comes from. Here
every damage ends in an `InvalidArgumentError` that does.
"""

from typing import NamedTuple

import tensorflow as tf

from training.data import damage


class RecordFormat(NamedTuple):
    """How the shards of a dataset are written.

    Attributes:
        compression: `"GZIP"`, or `""` for none.
        image: name of the feature with the bytes of a JPEG file.
        label: name of the feature with the int64 label.
    """

    compression: str
    image: str
    label: str


class Segment(NamedTuple):
    """The records of a shard from `start` to before `stop`."""

    file: str
    start: int
    stop: int


class RecordReader:
    """Makes datasets of `(file, index, encoded, label)` of some of a shard's records.

    Args:
        record_format: a `RecordFormat`.
        num_classes: int. Labels must be in `0 ... num_classes - 1`.
    """

    def __init__(self, record_format, num_classes):
        self.record_format = record_format
        self.num_classes = num_classes

    def read(self, file, start, stop):
        """Returns the dataset of the records of a `Segment`.

        Args:
            file: string tensor.
            start: int64 tensor.
            stop: int64 tensor.

        Returns:
            A `tf.data.Dataset` of string, int64, string and int32 scalars.
        """
        # Fails, with the name, where the file cannot be opened: ignoring that error
        # of the reader below, it would try for ever.
        first_byte = tf.data.FixedLengthRecordDataset(file, record_bytes=1).take(1)
        found = first_byte.flat_map(lambda _: self._readable(file, start, stop))
        none = tf.constant(-1, tf.int64)
        nothing = tf.data.Dataset.from_tensors((none, "", none))
        expected = tf.data.Dataset.range(start, stop)
        pairs = tf.data.Dataset.zip(expected, found.concatenate(nothing.repeat()))
        return pairs.map(
            lambda index, record: (file, index, *self._checked(file, index, *record))
        )

    def _readable(self, file, start, stop):
        """The records that can be read and parsed, with their index in the file."""
        records = tf.data.TFRecordDataset(file, self.record_format.compression)
        records = records.enumerate().skip(start).take(stop - start)
        return records.map(self._parsed).ignore_errors()

    def _parsed(self, index, record):
        features = tf.io.parse_single_example(
            record,
            {
                self.record_format.image: tf.io.FixedLenFeature([], tf.string),
                self.record_format.label: tf.io.FixedLenFeature([], tf.int64),
            },
        )
        encoded = features[self.record_format.image]
        return index, encoded, features[self.record_format.label]

    def _checked(self, file, index, found, encoded, label):
        place = [damage.PLACE, file, index]
        is_record = tf.debugging.Assert(
            found == index,
            [
                "A record is missing, damaged, or not an example of "
                f"`{self.record_format.image}` and `{self.record_format.label}`.",
                *place,
            ],
        )
        with tf.control_dependencies([is_record]):
            is_class = tf.debugging.Assert(
                (label >= 0) & (label < self.num_classes),
                [
                    f"Labels must be in 0 ... {self.num_classes - 1}. Received:",
                    label,
                    *place,
                ],
            )
        with tf.control_dependencies([is_class]):
            return encoded, tf.cast(label, tf.int32)
