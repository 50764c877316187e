"""Classes of pixels, and random changes of images together with their labels."""

from typing import NamedTuple

import tensorflow as tf

# Label of pixels that the loss and the scores ignore.
IGNORED = 255
# Scales 0.5, 0.6 ... 2.1.
_NUM_SCALES = 17


class Classes(NamedTuple):
    """Names and colors of the classes, in the order of their labels.

    Attributes:
        names: Tuple of strings.
        palette: Tuple of `(red, green, blue)`, 0 to 255: the colors of overlays.
    """

    names: tuple
    palette: tuple

    def __len__(self):
        return len(self.names)


class SegmentationTransform:
    """Casts whole images for evaluation; crops of one size are augmented one by one."""

    of_batches = False
    drops_remainder = True

    def prepare(self, image, labels):
        """Returns float32 pixels and int32 labels."""
        return tf.cast(image, tf.float32), tf.cast(labels, tf.int32)

    def augment(self, image, labels, config, key):
        """Returns float32 pixels and int32 labels; `config`: a pair of a
        `SegmentationAugmentationConfig` and the `(height, width)` of the crops."""
        return self.prepare(*augment(image, labels, *config, key))


def augment(image, labels, config, crop_size, key):
    """Returns a randomly scaled, cropped and mirrored image and its labels.

    Images become smaller or larger with bilinear, labels with nearest interpolation,
    both with half-pixel centers. If the image is smaller than the crop, black pixels
    with the label 255 are added below and to the right.

    Args:
        image: uint8 tensor `(height, width, 3)`, not yet normalized.
        labels: uint8 tensor `(height, width)`.
        config: `SegmentationAugmentationConfig`.
        crop_size: `(height, width)`.
        key: int64 tensor of shape `(2,)`. It determines the result.

    Returns:
        float32 tensor `(*crop_size, 3)` and uint8 tensor `crop_size`.
    """
    scale_key, crop_key, flip_key = tf.unstack(tf.random.split(key, 3))
    labels = labels[..., tf.newaxis]
    image = tf.cast(image, tf.float32)
    if config.random_scale:
        image, labels = _scale(image, labels, scale_key)
    image, labels = _crop(image, labels, crop_size, crop_key)
    if config.horizontal_flip:
        is_mirrored = tf.random.stateless_uniform([], flip_key) < 0.5
        image, labels = (
            tf.where(is_mirrored, tf.reverse(part, axis=[1]), part)
            for part in (image, labels)
        )
    return image, labels[..., 0]


def _scale(image, labels, key):
    step = tf.random.stateless_uniform([], key, maxval=_NUM_SCALES, dtype=tf.int32)
    scale = 0.5 + tf.cast(step, tf.float32) / 10
    size = tf.cast(tf.shape(labels)[:2], tf.float32)
    size = tf.cast(size * scale + 0.5, tf.int32)
    return (
        tf.image.resize(image, size, "bilinear"),
        tf.image.resize(labels, size, "nearest"),
    )


def _crop(image, labels, crop_size, key):
    missing = tf.maximum(crop_size - tf.shape(labels)[:2], 0)
    around = tf.pad(
        missing[:, tf.newaxis], [[0, 1], [1, 0]]
    )  # [[0, h], [0, w], [0, 0]]
    image = tf.pad(image, around)
    labels = tf.pad(labels, around, constant_values=IGNORED)
    num_places = tf.shape(labels)[:2] - crop_size + 1
    place = tf.random.stateless_uniform([2], key) * tf.cast(num_places, tf.float32)
    top, left = tf.unstack(tf.cast(place, tf.int32))
    height, width = crop_size
    return tuple(
        tf.ensure_shape(
            part[top : top + height, left : left + width],
            (height, width, part.shape[-1]),
        )
        for part in (image, labels)
    )
