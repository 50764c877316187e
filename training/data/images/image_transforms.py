"""Makes images of one size out of JPEG files of any: for training and evaluation."""

import math

import tensorflow as tf

from ..records import jpeg

_AREAS = (0.08, 1.0)
_RATIOS = (3 / 4, 4 / 3)
_ATTEMPTS = 10


def random_resized_crop(encoded, size, key):
    """Returns a random window of an image, resized to a square.

    Its area is uniform in 8% ... 100% of the image's, the logarithm of its ratio of
    width to height uniform in log 3/4 ... log 4/3, and its position uniform. Where none
    of ten such windows fits into the image, it is the largest one of an allowed ratio
    in the centre: RandomResizedCrop of torchvision, whose images are rounded to uint8.

    Args:
        encoded: string tensor, a JPEG file. Only the window is decoded to pixels.
        size: int. Side of the square.
        key: int64 tensor of shape `(2,)`. The result is a function of it.

    Returns:
        float32 tensor `(size, size, 3)` of pixels 0 to 255.
    """
    shape = tf.io.extract_jpeg_shape(encoded)[:2]
    return _resized(jpeg.decode_window(encoded, random_window(shape, key)), size, size)


def random_window(shape, key):
    """Returns the int32 `(top, left, height, width)` of `random_resized_crop`."""
    image_height, image_width = tf.unstack(tf.cast(shape, tf.float32))
    area, ratio, top, left = tf.unstack(
        tf.random.stateless_uniform([4, _ATTEMPTS], key)
    )
    area = _between(*_AREAS, area) * image_height * image_width
    ratio = tf.exp(_between(*map(math.log, _RATIOS), ratio))
    height, width = tf.round(tf.sqrt(area / ratio)), tf.round(tf.sqrt(area * ratio))
    attempts = tf.stack(
        [
            tf.floor(top * (image_height - height + 1)),
            tf.floor(left * (image_width - width + 1)),
            height,
            width,
        ],
        axis=1,
    )
    fits = (0 < height) & (height <= image_height)
    fits &= (0 < width) & (width <= image_width)
    windows = tf.concat([attempts, [_central(image_height, image_width)]], axis=0)
    # The first that fits: `argmax` takes the first of equals, and the last always fits.
    chosen = tf.argmax(tf.concat([tf.cast(fits, tf.int32), [1]], axis=0))
    return tf.cast(windows[chosen], tf.int32)


def resized_center_crop(encoded, size):
    """Returns the central square of an image whose short side is 256/224 of `size`.

    Args:
        encoded: string tensor, a JPEG file.
        size: int. Side of the square.

    Returns:
        float32 tensor `(size, size, 3)` of pixels 0 to 255.
    """
    image = jpeg.decode(encoded)
    short = round(256 / 224 * size)
    height, width = tf.unstack(tf.shape(image)[:2])
    shortest = tf.minimum(height, width)
    height, width = height * short // shortest, width * short // shortest
    image = _resized(image, height, width)
    top, left = _half(height - size), _half(width - size)
    return tf.ensure_shape(image[top : top + size, left : left + size], (size, size, 3))


def random_flip(image, key):
    """Returns the image `(height, width, channels)`, mirrored in half of the cases."""
    is_mirrored = tf.random.stateless_uniform([], key) < 0.5
    return tf.where(is_mirrored, tf.reverse(image, axis=[1]), image)


def _central(height, width):
    ratio = tf.clip_by_value(width / height, *_RATIOS)
    window = tf.minimum(height, tf.round(width / ratio))
    window = tf.stack([window, tf.minimum(width, tf.round(height * ratio))])
    window = tf.maximum(window, 1.0)
    return tf.concat([(tf.stack([height, width]) - window) // 2, window], axis=0)


def _resized(image, height, width):
    # Antialiased as in image libraries: their bilinear filter grows with the scale.
    return tf.image.resize(image, (height, width), antialias=True)


def _between(low, high, uniform):
    return low + (high - low) * uniform


def _half(difference):
    return tf.cast(tf.round(difference / 2), tf.int32)
