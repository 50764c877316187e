"""Random changes of images that keep their label."""

import tensorflow as tf


def augment(images, config, key):
    """Returns a batch of randomly cropped and mirrored images.

    Args:
        images: uint8 tensor `(batch, height, width, channels)`, not yet normalised:
            the padding is black.
        config: an `AugmentationConfig`.
        key: int64 tensor of shape `(2,)`. The result is a function of it.
    """
    if config.crop_padding:
        images = _random_crop(images, config.crop_padding, key)
    if config.horizontal_flip:
        images = _random_flip(images, tf.bitwise.invert(key))
    return images


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


def _random_flip(images, key):
    is_mirrored = tf.random.stateless_uniform([tf.shape(images)[0]], key) < 0.5
    mirrored = tf.reverse(images, axis=[2])
    return tf.where(is_mirrored[:, None, None, None], mirrored, images)
