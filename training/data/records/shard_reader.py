"""Reads records from TFRecord shards, one at a time and in order.

An error of TensorFlow's readers does not tell which of the shards it comes from. Here
every damage ends in an `InvalidArgumentError` that does, see `damage`.
"""

from typing import NamedTuple

import tensorflow as tf

from . import damage


class ShardFormat(NamedTuple):
    """How the shards of a dataset are written.

    Attributes:
        compression: `"GZIP"`, or `""` for none.
        features: tuple of the names of the features of a record.
        counted: str. Where the number of their records is from, and what to do where
            it is wrong.
    """

    compression: str
    features: tuple
    counted: str


class Segment(NamedTuple):
    """The records of a shard from `start` to before `stop`.

    Attributes:
        file: str.
        start: int.
        stop: int.
        is_rest: bool. Whether the shard must end at `stop`.
    """

    file: str
    start: int
    stop: int
    is_rest: bool


class ShardReader:
    """Makes datasets of `(file, index, *features)` of some of a shard's records.

    Args:
        shard_format: a `ShardFormat`.
        dtypes: tuple of the dtypes of the features.
    """

    def __init__(self, shard_format, dtypes):
        self.shard_format = shard_format
        self.dtypes = tuple(map(tf.as_dtype, dtypes))

    def read(self, file, start, stop, is_rest):
        """Returns the dataset of the records of a `Segment`, whose fields are tensors.

        Returns:
            A `tf.data.Dataset` of scalars: the file, a string, the index, an int64, and
            the features.
        """
        # Looks for one more record than there should be.
        end = stop + tf.cast(is_rest, tf.int64)
        # Fails, with the name, where the file cannot be opened: ignoring that error
        # of the reader below, it would try for ever.
        first_byte = tf.data.FixedLengthRecordDataset(file, record_bytes=1).take(1)
        found = first_byte.flat_map(lambda _: self._readable(file, start, end))
        nothing = tf.data.Dataset.from_tensors(
            (tf.constant(-1, tf.int64), *(_nothing(dtype) for dtype in self.dtypes))
        )
        expected = tf.data.Dataset.range(start, end)
        pairs = tf.data.Dataset.zip(expected, found.concatenate(nothing.repeat()))
        records = pairs.map(
            lambda index, record: (
                file,
                index,
                *self._checked(file, index, stop, record),
            )
        )
        return records.filter(lambda file, index, *features: index < stop)

    def checked_features(self, features, place):
        """Returns the features of a record; a subclass asserts what they must be.

        Args:
            features: tuple of tensors. They may also stand for no record: then they are
                empty strings and zeros.
            place: what the data of the assertions end with.
        """
        del place
        return features

    def _readable(self, file, start, end):
        """The records that can be read and parsed, with their index in the file."""
        records = tf.data.TFRecordDataset(file, self.shard_format.compression)
        records = records.enumerate().skip(start).take(end - start)
        return records.map(self._parsed).ignore_errors()

    def _parsed(self, index, record):
        names = self.shard_format.features
        features = {
            name: tf.io.FixedLenFeature([], dtype)
            for name, dtype in zip(names, self.dtypes, strict=True)
        }
        parsed = tf.io.parse_single_example(record, features)
        return (index, *(parsed[name] for name in names))

    def _checked(self, file, index, stop, record):
        found, *features = record
        place = damage.place(file, index)
        names = " and ".join(f"`{name}`" for name in self.shard_format.features)
        is_record = tf.debugging.Assert(
            (found == index) | (index == stop),
            [
                f"A record is missing, damaged, or not an example of {names}. If the "
                f"file is whole, the number of its records is wrong "
                f"{self.shard_format.counted}.",
                *place,
            ],
        )
        is_end = tf.debugging.Assert(
            (found < 0) | (index < stop),
            [
                "A record is one too many: the number of the file's records is wrong "
                f"{self.shard_format.counted}.",
                *place,
            ],
        )
        with tf.control_dependencies([is_record, is_end]):
            features = tuple(map(tf.identity, features))
        return self.checked_features(features, place)


def _nothing(dtype):
    return tf.constant("" if dtype == tf.string else 0, dtype)
