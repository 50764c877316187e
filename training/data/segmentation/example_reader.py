"""Reads images and their labels from TFRecord shards, one at a time.

An error of TensorFlow's decoders does not tell which record it comes from. Here every
damage ends in an `InvalidArgumentError` that does, see `training.data.damage`.
"""

from typing import NamedTuple

import tensorflow as tf

from training.data import damage, jpeg


class ExampleFormat(NamedTuple):
    """How the shards of a dataset are written.

    Attributes:
        compression: `"GZIP"`, or `""` for none.
        image: name of the feature with the bytes of a JPEG or PNG file.
        labels: name of the feature with the bytes of a PNG file of label ids.
    """

    compression: str
    image: str
    labels: str


class ExampleReader:
    """Makes datasets of the records of shards, and decodes them.

    Args:
        example_format: an `ExampleFormat`.
        image_size: `(height, width)` that all images must have.
        train_ids: int32 array `(256,)`. The label of each label id, -1 for what is no
            label id.
    """

    def __init__(self, example_format, image_size, train_ids):
        self.example_format = example_format
        self.image_size = tuple(image_size)
        self.train_ids = train_ids

    def read(self, file, start, stop):
        """Returns the dataset of `(file, index, record)` of a `Segment`, undecoded."""
        records = tf.data.TFRecordDataset(file, self.example_format.compression)
        records = records.enumerate().skip(start).take(stop - start)
        return records.map(lambda index, record: (file, index, record))

    def decode(self, file, index, record):
        """Returns uint8 `(height, width, 3)` pixels and `(height, width)` labels."""
        place = [damage.PLACE, file, index]
        image, labels = self._features(record, place)
        image = self._decoded(_decode_image, image, self.example_format.image, place)
        labels = self._decoded(
            _decode_labels, labels, self.example_format.labels, place
        )
        labels = tf.gather(self.train_ids, tf.cast(labels[..., 0], tf.int32))
        are_ids = tf.debugging.Assert(
            tf.reduce_all(labels >= 0),
            [
                f"Labels in `{self.example_format.labels}` must be label ids of the "
                "data set, not train ids or colours.",
                *place,
            ],
        )
        with tf.control_dependencies([are_ids]):
            return image, tf.cast(labels, tf.uint8)

    def _features(self, record, place):
        names = (self.example_format.image, self.example_format.labels)

        def parse(record):
            features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}
            parsed = tf.io.parse_single_example(record, features)
            return tuple(parsed[name] for name in names)

        features = _value_or(("", ""), parse, record)
        is_example = tf.debugging.Assert(
            tf.strings.length(features[0]) > 0,
            [f"A record is not an example of `{names[0]}` and `{names[1]}`.", *place],
        )
        with tf.control_dependencies([is_example]):
            return tuple(map(tf.identity, features))

    def _decoded(self, decode, encoded, name, place):
        channels = 1 if decode is _decode_labels else 3
        pixels = _value_or(tf.zeros((0, 0, 0), tf.uint8), decode, encoded)
        is_whole = tf.debugging.Assert(
            tf.size(pixels) > 0,
            [f"`{name}` is not an image of the right kind, or damaged.", *place],
        )
        expected = (*self.image_size, channels)
        with tf.control_dependencies([is_whole]):
            has_shape = tf.debugging.Assert(
                tf.reduce_all(tf.shape(pixels) == expected),
                [
                    f"`{name}` must have {channels} channels of size "
                    f"{self.image_size}, `data.image_size`. Received:",
                    tf.shape(pixels),
                    *place,
                ],
            )
        with tf.control_dependencies([has_shape]):
            return tf.ensure_shape(tf.identity(pixels), expected)


def _decode_image(encoded):
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: jpeg.decode(encoded),
        lambda: tf.io.decode_png(encoded, channels=3),
    )


def _decode_labels(encoded):
    # Not as one channel: that would turn colours into greys, which look like label ids.
    return tf.io.decode_png(encoded)


def _value_or(default, function, argument):
    """Returns the value of a function, or a default where it fails."""
    values = tf.data.Dataset.from_tensors(argument).map(function).ignore_errors()
    return values.reduce(default, lambda _, value: value)
