"""What streams make of JPEG files of any size."""

import tensorflow as tf

from .image_transforms import random_flip, random_resized_crop, resized_center_crop


class JPEGTransform:
    """Decodes JPEG files to squares of one size: their center, or a random window.

    Args:
        image_size: int. Side of the squares.
    """

    of_batches = False
    drops_remainder = False

    def __init__(self, image_size):
        self.image_size = image_size

    @property
    def image_shape(self):
        """`(height, width, channels)` of the squares."""
        return (self.image_size, self.image_size, 3)

    def evaluated(self, encoded, label):
        """Returns float32 pixels and the label."""
        return resized_center_crop(encoded, self.image_size), label

    def augmented(self, encoded, label, config, key):
        """Returns float32 pixels and the label; `config`: an `AugmentationConfig`."""
        crop_key, flip_key = tf.unstack(tf.random.split(key))
        if config.resized_crop:
            image = random_resized_crop(encoded, self.image_size, crop_key)
        else:
            image = resized_center_crop(encoded, self.image_size)
        if config.horizontal_flip:
            image = random_flip(image, flip_key)
        return image, label
