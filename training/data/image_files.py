"""Decode image files to pixels, and the statistics that normalize them."""

import io

import numpy as np
import tensorflow as tf
from PIL import Image

from deq_keras.models import MDEQImageConverter

# TensorFlow's default (the fast transform) is off by up to 5 gray levels.
_TRANSFORM = "INTEGER_ACCURATE"

_PNG = b"\x89PNG\r\n\x1a\n"
_BY_PILLOW = ("BMP", "GIF", "JPEG")


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

    TensorFlow decodes PNG and JPEG files. Pillow decodes BMP and GIF files and JPEG
    files in CMYK: TensorFlow ignores their palettes and transparency, or rejects them.
    Other formats are an error. Do not use `tf.io.decode_image`: an animated WebP file
    corrupts the memory of the process (TensorFlow 2.21).

    Args:
        encoded: String tensor, a BMP, GIF, JPEG or PNG file. Only the first frame of an
            animation is decoded. Transparency and the orientation in EXIF data are
            ignored.
        num_channels: 3 for colors, or 1 for gray values.
    """
    pixels = tf.case(
        [
            (
                tf.strings.substr(encoded, 0, len(_PNG)) == _PNG,
                lambda: _decode_png(encoded, num_channels),
            ),
            (
                tf.cond(  # JPEG files, but not in CMYK.
                    tf.io.is_jpeg(encoded),
                    lambda: tf.io.extract_jpeg_shape(encoded)[-1] < 4,
                    lambda: tf.constant(False),
                ),
                lambda: tf.io.decode_jpeg(encoded, num_channels, dct_method=_TRANSFORM),
            ),
        ],
        default=lambda: tf.numpy_function(
            lambda content: _decode_by_pillow(content, num_channels),
            [encoded],
            tf.uint8,
        ),
    )
    return tf.ensure_shape(pixels, (None, None, num_channels))


def dataset_statistics(name):
    """Returns means and standard deviations of the channels, for pixels 0 to 255.

    Args:
        name: String. A dataset of `MDEQImageConverter.statistics`.
    """
    return tuple(
        tuple(255 * value for value in values)
        for values in MDEQImageConverter.statistics[name]
    )


def _decode_png(encoded, num_channels):
    # Converts colors as for other formats; libpng has other weights for gray values.
    pixels = tf.io.decode_png(encoded)
    height, width, stored = tf.unstack(tf.shape(pixels))
    pixels = pixels[..., : stored - (1 - stored % 2)]  # Drops the transparency.
    if num_channels == 3:
        return tf.broadcast_to(pixels, (height, width, 3))
    return tf.cond(
        tf.shape(pixels)[-1] == 3,
        lambda: tf.image.rgb_to_grayscale(tf.ensure_shape(pixels, (None, None, 3))),
        lambda: pixels,
    )


def _decode_by_pillow(encoded, num_channels):
    mode = "RGB" if num_channels == 3 else "L"
    # TensorFlow passes bytes, or an array of objects in eager mode.
    content = encoded if isinstance(encoded, bytes) else encoded.item()
    try:
        with Image.open(io.BytesIO(content), formats=_BY_PILLOW) as image:
            pixels = np.asarray(image.convert("RGB").convert(mode))
    # Corrupt files cause errors of many types.
    except Exception as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    return pixels.reshape((*pixels.shape[:2], num_channels))
