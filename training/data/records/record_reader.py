"""Read records from TFRecord shards, one at a time and in order.

Errors of TensorFlow's readers do not name the shard. Here every corrupt record raises
an `InvalidArgumentError` that does, and `examined` returns the error as a value.
"""

from typing import NamedTuple

import tensorflow as tf

# The error of a record without errors.
NO_ERROR = ""
# The error if one of TensorFlow's decoders of images fails.
_UNDECODABLE = (
    "An image is a damaged JPEG or PNG file, or one of another size than it says."
)


def first_error(*checks):
    """Returns the error of the first check that fails, a string scalar.

    Args:
        checks: Pairs of a Boolean scalar tensor, whether the check passes, and the
            error otherwise.
    """
    error = tf.constant(NO_ERROR)
    for passes, failure in reversed(checks):
        error = tf.where(passes, error, failure)
    return error


def _raised(error, file, index, values):
    """Returns the tensors `values` of a record; raises its error if it has one."""
    assertion = tf.debugging.Assert(error == NO_ERROR, [error, file, index])
    with tf.control_dependencies([assertion]):
        return tf.nest.map_structure(tf.identity, values)


class ShardFormat(NamedTuple):
    """How the shards of a dataset are written.

    Attributes:
        compression: `"GZIP"`, or `""` for none.
        features: Dict from the names of a record's features to their dtypes.
        counted: String. The origin of the number of records, and the remedy if it is
            wrong.
    """

    compression: str
    features: dict
    counted: str


class Segment(NamedTuple):
    """The records of a shard from `start` to before `stop`.

    Attributes:
        file: String.
        start: Integer.
        stop: Integer.
        is_rest: Boolean. Whether the shard must end at `stop`.
    """

    file: str
    start: int
    stop: int
    is_rest: bool


class RecordReader:
    """Reads a shard's records as datasets, and decodes their examples.

    Args:
        shard_format: `ShardFormat`.
        decode: Function of the features of a record, scalar tensors in the order of the
            format. It returns the example, a nest of tensors, and its `first_error`.
            If there is an error, the example is not used.
    """

    def __init__(self, shard_format, decode):
        self.shard_format = shard_format
        self._decode = decode

    def read(self, file, start, stop, is_rest):
        """Returns the dataset of the records of a `Segment` given by its fields.

        Returns:
            A `tf.data.Dataset` of scalars: the file, a string, the index, an int64, and
            the features.
        """

        def checked(file, index, error, *features):
            return file, index, *_raised(error, file, index, features)

        records = self._with_errors(file, start, stop, is_rest).map(checked)
        return records.filter(lambda file, index, *features: index < stop)

    def decode(self, file, index, *features):
        """Returns the example of a record of `read`."""
        example, error = self._decode(*features)
        return _raised(error, file, index, example)

    def examined(self, file, start, stop, is_rest, use):
        """Returns the dataset of `(file, index, error)` of the records with errors.

        Args:
            file, start, stop, is_rest: The fields of a `Segment`.
            use: Function of the parts of an example. If it fails, the record has an
                error.
        """

        def is_present(file, index, error, *features):
            return (index < stop) | (error != NO_ERROR)

        def examine(file, index, error, *features):
            decoded = _attempted(lambda *record: self._decode(*record)[1], features)
            example_error = decoded.reduce(_UNDECODABLE, lambda _, error: error)
            used = _attempted(lambda *record: use(*self._decode(*record)[0]), features)
            is_used = used.reduce(0, lambda count, *_: count + 1) > 0
            error = first_error(
                (error == NO_ERROR, error),
                (example_error == NO_ERROR, example_error),
                (is_used, _UNDECODABLE),
            )
            return file, index, error

        records = self._with_errors(file, start, stop, is_rest).filter(is_present)
        examined = records.map(
            examine, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return examined.filter(lambda file, index, error: error != NO_ERROR)

    def _with_errors(self, file, start, stop, is_rest):
        """The dataset of file, index, error and features of each record.

        A record that is missing has an error and empty features.
        """
        # Looks for one record beyond the end, which must not exist.
        end = stop + tf.cast(is_rest, tf.int64)
        # Raises an error with the name if the file cannot be opened. The reader below
        # ignores errors and would try forever.
        first_byte = tf.data.FixedLengthRecordDataset(file, record_bytes=1).take(1)
        found = first_byte.flat_map(lambda _: self._readable(file, start, end))
        empty = (
            tf.constant("" if dtype == tf.string else 0, dtype)
            for dtype in self.shard_format.features.values()
        )
        nothing = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), *empty))
        expected = tf.data.Dataset.range(start, end)
        pairs = tf.data.Dataset.zip(expected, found.concatenate(nothing.repeat()))
        return pairs.map(
            lambda index, record: (
                file,
                index,
                self._record_error(record[0], index, stop),
                *record[1:],
            )
        )

    def _readable(self, file, start, end):
        """The readable records with their index in the file."""
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

    def _record_error(self, found, index, stop):
        names = " and ".join(f"`{name}`" for name in self.shard_format.features)
        counted = self.shard_format.counted
        return first_error(
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


def _attempted(function, arguments):
    """The dataset of the function's value; empty if it fails."""
    return tf.data.Dataset.from_tensors(arguments).map(function).ignore_errors()
