"""Decodes JPEG files to pixels, all of them or a window."""

import tensorflow as tf

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


def is_whole(encoded):
    """Returns whether these are the bytes of a JPEG file.

    Files that begin and end as they should are not decoded for it: what is wrong
    between fails later.
    """
    length = tf.minimum(tf.strings.length(encoded), 2)
    end = tf.strings.substr(encoded, -length, length)
    return tf.io.is_jpeg(encoded) & tf.cond(
        end == b"\xff\xd9", lambda: True, lambda: _can_be_decoded(encoded)
    )


def _can_be_decoded(encoded):
    images = tf.data.Dataset.from_tensors(encoded).map(decode).ignore_errors()
    return images.reduce(0, lambda count, _: count + 1) > 0
