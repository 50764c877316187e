"""Transform labeled images for training and evaluation: cast, crop, resize, mirror."""

import math

import tensorflow as tf

from .. import image_files
from ..splits import MemorySplit

_AREAS = (0.08, 1.0)
_RATIOS = (3 / 4, 4 / 3)
_ATTEMPTS = 10


class ArrayTransform:
    """Casts batches of images of one size; in training, augments them together."""

    of_batches = True
    drops_remainder = False

    def prepare(self, images, labels):
        """Returns float32 pixels and the labels."""
        return tf.cast(images, tf.float32), labels

    def augment(self, images, labels, config, key):
        """Returns float32 pixels and the labels; `config`: an `AugmentationConfig`."""
        return self.prepare(augment(images, config, key), labels)


class JPEGTransform:
    """Decodes JPEG files to squares of one size: their center, or a random window.

    Args:
        image_size: Positive integer. Side of the squares.
    """

    of_batches = False
    drops_remainder = False

    def __init__(self, image_size):
        self.image_size = image_size
        self.image_shape = (image_size, image_size, 3)

    def prepare(self, encoded, label):
        """Returns float32 pixels and the label."""
        return resized_center_crop(encoded, self.image_size), label

    def augment(self, encoded, label, config, key):
        """Returns float32 pixels and the label; `config`: an `AugmentationConfig`."""
        crop_key, flip_key = tf.unstack(tf.random.split(key))
        if config.resized_crop:
            image = random_resized_crop(encoded, self.image_size, crop_key)
        else:
            image = resized_center_crop(encoded, self.image_size)
        if config.horizontal_flip:
            is_mirrored = tf.random.stateless_uniform([], flip_key) < 0.5
            image = tf.where(is_mirrored, tf.reverse(image, axis=[1]), image)
        return image, label


class FileTransform:
    """Decodes image files of any format to squares: the largest central one, resized.

    An image of the right size stays as it is, unlike with `JPEGTransform`.

    Args:
        image_size: Positive integer. Side of the squares.
        num_channels: 3 for colors, or 1 for gray values.
    """

    of_batches = False
    drops_remainder = False

    def __init__(self, image_size, num_channels):
        self.image_size = image_size
        self.image_shape = (image_size, image_size, num_channels)

    def prepare(self, encoded, label):
        """Returns float32 pixels and the label."""
        image = image_files.decode(encoded, self.image_shape[-1])
        height, width = tf.unstack(tf.shape(image)[:2])
        side = tf.minimum(height, width)
        window = tf.stack([(height - side) // 2, (width - side) // 2, side, side])
        return self._resize_window(image, window), label

    def augment(self, encoded, label, config, key):
        """Returns float32 pixels and the label; `config`: an `AugmentationConfig`."""
        window_key, key = tf.unstack(tf.random.split(key))
        if config.resized_crop:
            image = image_files.decode(encoded, self.image_shape[-1])
            image = self._resize_window(
                image, random_window(tf.shape(image)[:2], window_key)
            )
        else:
            image, _ = self.prepare(encoded, label)
        return augment(image[tf.newaxis], config, key)[0], label

    def _resize_window(self, image, window):
        top, left, height, width = tf.unstack(window)
        image = image[top : top + height, left : left + width]
        return tf.ensure_shape(
            resize(image, self.image_size, self.image_size), self.image_shape
        )


def in_memory(images, labels):
    """Returns the `MemorySplit` of images in arrays.

    Args:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: int32 array `(num_images,)`.
    """
    return MemorySplit(images, labels, ArrayTransform())


def augment(images, config, key):
    """Returns a batch of randomly cropped and mirrored images.

    Args:
        images: uint8 tensor `(batch, height, width, channels)`, not yet normalized: the
            padding is black.
        config: `AugmentationConfig`.
        key: int64 tensor of shape `(2,)`. It determines the result.
    """
    if config.crop_padding:
        images = _random_crop(images, config.crop_padding, key)
    if config.horizontal_flip:
        images = _random_flips(images, tf.bitwise.invert(key))
    return images


def random_resized_crop(encoded, size, key):
    """Returns a random window of an image, resized to a square.

    Its area is uniform in 8% ... 100% of the image's, the logarithm of its ratio of
    width to height uniform in log 3/4 ... log 4/3, and its position uniform. If ten
    windows do not fit, the largest central window of an allowed ratio is used: this is
    torchvision's RandomResizedCrop, without its rounding to uint8.

    Args:
        encoded: String tensor, a JPEG file. Only the window is decoded to pixels.
        size: Positive integer. Side of the square.
        key: int64 tensor of shape `(2,)`. It determines the result.

    Returns:
        float32 tensor `(size, size, 3)` of pixels 0 to 255.
    """
    shape = tf.io.extract_jpeg_shape(encoded)[:2]
    window = random_window(shape, key)
    return resize(image_files.decode_jpeg_window(encoded, window), size, size)


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
    # `argmax` returns the first window that fits; the central one always does.
    chosen = tf.argmax(tf.concat([tf.cast(fits, tf.int32), [1]], axis=0))
    return tf.cast(windows[chosen], tf.int32)


def resized_center_crop(encoded, size):
    """Returns the central square of an image whose short side is 256/224 of `size`.

    Args:
        encoded: String tensor, a JPEG file.
        size: Positive integer. Side of the square.

    Returns:
        float32 tensor `(size, size, 3)` of pixels 0 to 255.
    """
    image = image_files.decode_jpeg(encoded)
    short = round(256 / 224 * size)
    height, width = tf.unstack(tf.shape(image)[:2])
    shortest = tf.minimum(height, width)
    height, width = height * short // shortest, width * short // shortest
    image = resize(image, height, width)
    top, left = (
        tf.cast(tf.round((side - size) / 2), tf.int32) for side in (height, width)
    )
    return tf.ensure_shape(image[top : top + size, left : left + size], (size, size, 3))


def resize(image, height, width):
    """Returns the image `(height, width, channels)` in float32.

    The filter is antialiased as in image libraries: it grows with the scale.
    """
    return tf.image.resize(image, (height, width), antialias=True)


def _random_crop(images, padding, key):
    batch, height, width = tf.unstack(tf.shape(images)[:3])
    around = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
    padded = tf.pad(images, around)
    corner = tf.random.stateless_uniform(
        [batch, 2], key, maxval=2 * padding + 1, dtype=tf.int32
    )
    rows = corner[:, :1] + tf.range(height)  # (B, H)
    columns = corner[:, 1:] + tf.range(width)  # (B, W)
    cropped = tf.gather(padded, rows, axis=1, batch_dims=1)
    cropped = tf.gather(cropped, columns, axis=2, batch_dims=1)  # (B, H, W, C)
    return tf.ensure_shape(cropped, images.shape)


def _random_flips(images, key):
    is_mirrored = tf.random.stateless_uniform([tf.shape(images)[0]], key) < 0.5
    mirrored = tf.reverse(images, axis=[2])
    return tf.where(is_mirrored[:, None, None, None], mirrored, images)


def _central(height, width):
    ratio = tf.clip_by_value(width / height, *_RATIOS)
    window = tf.minimum(height, tf.round(width / ratio))
    window = tf.stack([window, tf.minimum(width, tf.round(height * ratio))])
    window = tf.maximum(window, 1.0)
    return tf.concat([(tf.stack([height, width]) - window) // 2, window], axis=0)


def _between(low, high, uniform):
    return low + (high - low) * uniform
