"""Examples of labelled images, made of records.

Every record is a `tf.train.Example` of two features: `image/encoded`, the bytes of one
JPEG file, and `label`, an int64; in TFDS the first is called `image`.
"""

import functools

import tensorflow as tf

from ..records import jpeg, shards, trouble
from ..records.record_reader import RecordReader, ShardFormat

IN_FOLDER = ShardFormat(
    "GZIP", {"image/encoded": tf.string, "label": tf.int64}, shards.COUNTED_HERE
)
OF_TFDS = ShardFormat(
    "", {"image": tf.string, "label": tf.int64}, shards.COUNTED_BY_TFDS
)


def reader_of_files(shard_format, num_classes):
    """Returns the `RecordReader` of JPEG files of any size, as they are, with labels.

    Args:
        shard_format: `IN_FOLDER` or `OF_TFDS`.
        num_classes: int. Labels must be in `0 ... num_classes - 1`.
    """
    return RecordReader(shard_format, functools.partial(_file, num_classes=num_classes))


def reader_of_pixels(shard_format, num_classes, image_shape):
    """Returns the `RecordReader` of the pixels of images of one shape, with labels.

    Args:
        shard_format: `IN_FOLDER` or `OF_TFDS`.
        num_classes: int. Labels must be in `0 ... num_classes - 1`.
        image_shape: `(height, width, 3)`.
    """
    decode = functools.partial(
        _pixels, num_classes=num_classes, image_shape=image_shape
    )
    return RecordReader(shard_format, decode)


def _file(encoded, label, num_classes):
    words = trouble.first(
        _label_check(label, num_classes),
        (jpeg.is_whole(encoded), "An image is not a JPEG file, or truncated."),
    )
    return (encoded, tf.cast(label, tf.int32)), words


def _pixels(encoded, label, num_classes, image_shape):
    pixels = jpeg.decode(encoded)
    words = trouble.first(
        _label_check(label, num_classes),
        (
            tf.reduce_all(tf.shape(pixels) == image_shape),
            tf.strings.format(
                f"Images must be of shape {image_shape}. Received: {{}}.",
                tf.shape(pixels),
            ),
        ),
    )
    pixels.set_shape(image_shape)
    return (pixels, tf.cast(label, tf.int32)), words


def _label_check(label, num_classes):
    return (
        (label >= 0) & (label < num_classes),
        tf.strings.format(
            f"Labels must be in 0 ... {num_classes - 1}. Received: {{}}.", label
        ),
    )
