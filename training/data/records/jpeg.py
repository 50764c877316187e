"""Decodes JPEG files to pixels, all of them or a window."""

import tensorflow as tf

from . import damage

# TensorFlow's default (the fast transform) is off by up to 5 grey levels.
_TRANSFORM = "INTEGER_ACCURATE"


def decode(encoded):
    """Returns the uint8 pixels `(height, width, 3)`; grey images get three channels."""
    return tf.io.decode_jpeg(encoded, channels=3, dct_method=_TRANSFORM)


def decode_window(encoded, window):
    """Returns the uint8 pixels in `(top, left, height, width)`, without the others."""
    return tf.io.decode_and_crop_jpeg(
        encoded, window, channels=3, dct_method=_TRANSFORM
    )


def checked(encoded, file, index):
    """Returns the bytes of a JPEG file if they can be decoded.

    Otherwise an `InvalidArgumentError` names the shard and the record. Files that begin
    and end as they should are not decoded for it: what is wrong between fails later.
    """
    length = tf.minimum(tf.strings.length(encoded), 2)
    end = tf.strings.substr(encoded, -length, length)
    is_whole = tf.cond(
        end == b"\xff\xd9", lambda: True, lambda: can_be_decoded(encoded)
    )
    assertion = tf.debugging.Assert(
        tf.io.is_jpeg(encoded) & is_whole,
        ["An image is not a JPEG file, or truncated.", *damage.place(file, index)],
    )
    with tf.control_dependencies([assertion]):
        return tf.identity(encoded)


def can_be_decoded(encoded):
    """Returns whether the bytes of a file are those of a JPEG file, by decoding it."""
    images = tf.data.Dataset.from_tensors(encoded).map(decode).ignore_errors()
    return images.reduce(0, lambda count, _: count + 1) > 0
