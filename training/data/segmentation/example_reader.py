"""Reads images and their labels from TFRecord shards, one at a time.

An error of TensorFlow's decoders does not tell which record it comes from. Here every
damage ends in an `InvalidArgumentError` that does, see `training.data.records.damage`.
"""

import tensorflow as tf

from ..records import damage, jpeg
from ..records.shard_reader import ShardReader

# What a PNG file begins with, and the bits of a sample, at the byte 24.
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS = b"\x08"


class ExampleReader(ShardReader):
    """Makes datasets of the records of shards, and decodes them.

    Args:
        shard_format: a `ShardFormat` of the bytes of a JPEG or PNG file and of those of
            a PNG file of label ids.
        image_size: `(height, width)` that all images must have.
        train_ids: int32 array `(256,)`. The label of each label id, -1 for what is no
            label id.
    """

    def __init__(self, shard_format, image_size, train_ids):
        super().__init__(shard_format, (tf.string, tf.string))
        self.image_size = tuple(image_size)
        self.train_ids = train_ids

    def decode(self, file, index, image, labels):
        """Returns uint8 `(height, width, 3)` pixels and `(height, width)` labels."""
        place = damage.place(file, index)
        image_name, labels_name = self.shard_format.features
        image = self._decoded(_decode_image, image, image_name, place)
        encoded = labels
        labels = self._decoded(_decode_labels, encoded, labels_name, place)
        with tf.control_dependencies([labels]):
            are_exact = tf.debugging.Assert(
                _is_png_of_8_bits(encoded),
                [f"`{labels_name}` must be a PNG file of 8 bits a pixel.", *place],
            )
        labels = tf.gather(self.train_ids, tf.cast(labels[..., 0], tf.int32))
        are_ids = tf.debugging.Assert(
            tf.reduce_all(labels >= 0),
            [
                f"Labels in `{labels_name}` must be label ids of the data set, not "
                "train ids or colours.",
                *place,
            ],
        )
        with tf.control_dependencies([are_exact, are_ids]):
            return image, tf.cast(labels, tf.uint8)

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


def _is_png_of_8_bits(encoded):
    """Other depths would be scaled to 8 bits, and JPEG files smear labels."""
    start = tf.strings.substr(encoded, 0, tf.minimum(tf.strings.length(encoded), 25))
    start = tf.strings.join([start, b"\0" * 25])
    is_png = tf.strings.substr(start, 0, len(_SIGNATURE)) == _SIGNATURE
    return is_png & (tf.strings.substr(start, 24, 1) == _EIGHT_BITS)


def _value_or(default, function, argument):
    """Returns the value of a function, or a default where it fails."""
    values = tf.data.Dataset.from_tensors(argument).map(function).ignore_errors()
    return values.reduce(default, lambda _, value: value)
