"""Reads records from TFRecord shards, one at a time and in order.

An error of TensorFlow's readers does not tell which of the shards it comes from. Here
every damage ends in an `InvalidArgumentError` that does, and in `examined` as a value.
"""

from typing import NamedTuple

import tensorflow as tf

from . import trouble

# Where a decoder of TensorFlow fails, which are those of JPEG files.
_UNDECODABLE = "An image is a damaged JPEG file, or one of another size than it says."


class ShardFormat(NamedTuple):
    """How the shards of a dataset are written.

    Attributes:
        compression: `"GZIP"`, or `""` for none.
        features: dict of the names of the features of a record to their dtypes.
        counted: str. Where the number of their records is from, and what to do where
            it is wrong.
    """

    compression: str
    features: dict
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


class RecordReader:
    """Makes datasets of some of a shard's records, and examples of these.

    Args:
        shard_format: a `ShardFormat`.
        decode: function of the features of a record, scalar tensors in the order of the
            format. It returns a nest of tensors, the example, and what is wrong with
            it, as `trouble.first` does. What it then returns as the example is not
            used.
    """

    def __init__(self, shard_format, decode):
        self.shard_format = shard_format
        self._decode = decode

    def read(self, file, start, stop, is_rest):
        """Returns the dataset of the records of a `Segment`, whose fields are tensors.

        Returns:
            A `tf.data.Dataset` of scalars: the file, a string, the index, an int64, and
            the features.
        """

        def checked(file, index, words, *features):
            return file, index, *trouble.refused(words, file, index, features)

        records = self._with_trouble(file, start, stop, is_rest).map(checked)
        return records.filter(lambda file, index, *features: index < stop)

    def decode(self, file, index, *features):
        """Returns the example of a record of `read`."""
        example, words = self._decode(*features)
        return trouble.refused(words, file, index, example)

    def examined(self, file, start, stop, is_rest, use):
        """Returns the dataset of `(file, index, trouble)` of records with trouble.

        Args:
            file, start, stop, is_rest: the fields of a `Segment`.
            use: function of the parts of an example. Where it fails, there is trouble.
        """

        def is_there(file, index, words, *features):
            return (index < stop) | (words != trouble.NONE)

        def examine(file, index, words, *features):
            decoded = _attempted(lambda *record: self._decode(*record)[1], features)
            words_of_example = decoded.reduce(_UNDECODABLE, lambda _, words: words)
            used = _attempted(lambda *record: use(*self._decode(*record)[0]), features)
            is_used = used.reduce(0, lambda count, *_: count + 1) > 0
            words = trouble.first(
                (words == trouble.NONE, words),
                (words_of_example == trouble.NONE, words_of_example),
                (is_used, _UNDECODABLE),
            )
            return file, index, words

        records = self._with_trouble(file, start, stop, is_rest).filter(is_there)
        examined = records.map(
            examine, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return examined.filter(lambda file, index, words: words != trouble.NONE)

    def _with_trouble(self, file, start, stop, is_rest):
        """The dataset of file, index, trouble and features, of no record at the end."""
        # Looks for one more record than there should be.
        end = stop + tf.cast(is_rest, tf.int64)
        # Fails, with the name, where the file cannot be opened: ignoring that error
        # of the reader below, it would try for ever.
        first_byte = tf.data.FixedLengthRecordDataset(file, record_bytes=1).take(1)
        found = first_byte.flat_map(lambda _: self._readable(file, start, end))
        nothing = tf.data.Dataset.from_tensors(
            (tf.constant(-1, tf.int64), *map(_nothing, self._dtypes()))
        )
        expected = tf.data.Dataset.range(start, end)
        pairs = tf.data.Dataset.zip(expected, found.concatenate(nothing.repeat()))
        return pairs.map(
            lambda index, record: (
                file,
                index,
                self._trouble(record[0], index, stop),
                *record[1:],
            )
        )

    def _readable(self, file, start, end):
        """The records that can be read and parsed, with their index in the file."""
        records = tf.data.TFRecordDataset(file, self.shard_format.compression)
        records = records.enumerate().skip(start).take(end - start)
        return records.map(self._parsed).ignore_errors()

    def _parsed(self, index, record):
        features = {
            name: tf.io.FixedLenFeature([], dtype)
            for name, dtype in self.shard_format.features.items()
        }
        parsed = tf.io.parse_single_example(record, features)
        return (index, *(parsed[name] for name in features))

    def _trouble(self, found, index, stop):
        names = " and ".join(f"`{name}`" for name in self.shard_format.features)
        counted = self.shard_format.counted
        return trouble.first(
            (
                (found == index) | (index == stop),
                f"A record is missing, damaged, or not an example of {names}. If the "
                f"file is whole, the number of its records is wrong {counted}.",
            ),
            (
                (found < 0) | (index < stop),
                "A record is one too many: the number of the file's records is wrong "
                f"{counted}.",
            ),
        )

    def _dtypes(self):
        return self.shard_format.features.values()


def _attempted(function, arguments):
    """The dataset of the function's value, of nothing where it fails."""
    return tf.data.Dataset.from_tensors(arguments).map(function).ignore_errors()


def _nothing(dtype):
    return tf.constant("" if dtype == tf.string else 0, dtype)
