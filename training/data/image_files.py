"""Decode image files to pixels, and the statistics that normalize them."""

import tensorflow as tf

from deq_keras.models import MDEQImageConverter

# TensorFlow's default (the fast transform) is off by up to 5 gray levels.
_TRANSFORM = "INTEGER_ACCURATE"


def decode_jpeg(encoded):
    """Returns uint8 pixels `(height, width, 3)`; gray images get three channels."""
    return tf.io.decode_jpeg(encoded, channels=3, dct_method=_TRANSFORM)


def decode_jpeg_window(encoded, window):
    """Returns only the uint8 pixels in the window `(top, left, height, width)`."""
    return tf.io.decode_and_crop_jpeg(
        encoded, window, channels=3, dct_method=_TRANSFORM
    )


def decode(encoded, num_channels):
    """Returns the uint8 pixels `(height, width, num_channels)` of an image file.

    Args:
        encoded: String tensor, a BMP, GIF, JPEG or PNG file. Only the first frame of an
            animation is decoded; transparency is ignored.
        num_channels: 3 for colors, or 1 for gray values.
    """
    pixels = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, num_channels, dct_method=_TRANSFORM),
        lambda: _without_transparency(encoded, num_channels),
    )
    return tf.ensure_shape(pixels, (None, None, num_channels))


def is_whole_jpeg(encoded):
    """Returns whether these are the bytes of a JPEG file.

    A file whose first and last bytes are right is not decoded here; an error between
    them shows when the pixels are decoded.
    """
    length = tf.minimum(tf.strings.length(encoded), 2)
    end = tf.strings.substr(encoded, -length, length)
    return tf.io.is_jpeg(encoded) & tf.cond(
        end == b"\xff\xd9", lambda: True, lambda: _can_be_decoded(encoded)
    )


def dataset_statistics(name):
    """Returns means and standard deviations of the channels, for pixels 0 to 255.

    Args:
        name: String. A dataset of `MDEQImageConverter.statistics`.
    """
    return tuple(
        tuple(255 * value for value in values)
        for values in MDEQImageConverter.statistics[name]
    )


def _without_transparency(encoded, num_channels):
    # Decodes the stored channels: BMP and GIF files refuse to convert them.
    pixels = tf.io.decode_image(encoded, expand_animations=False)
    height, width, stored = tf.unstack(tf.shape(pixels))
    pixels = pixels[..., : stored - (1 - stored % 2)]
    if num_channels == 3:
        return tf.broadcast_to(pixels, (height, width, 3))
    return tf.cond(
        tf.shape(pixels)[-1] == 3,
        lambda: tf.image.rgb_to_grayscale(tf.ensure_shape(pixels, (None, None, 3))),
        lambda: pixels,
    )


def _can_be_decoded(encoded):
    images = tf.data.Dataset.from_tensors(encoded).map(decode_jpeg).ignore_errors()
    return images.reduce(0, lambda count, _: count + 1) > 0
