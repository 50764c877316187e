"""What streams make of images of one size."""

import tensorflow as tf

from ..splits import MemorySplit
from .augmentation import augment


class ArrayTransform:
    """Casts batches of images; in training, after they were augmented together."""

    of_batches = True
    drops_remainder = False

    def evaluated(self, images, labels):
        """Returns float32 pixels and the labels."""
        return tf.cast(images, tf.float32), labels

    def augmented(self, images, labels, config, key):
        """Returns float32 pixels and the labels; `config`: an `AugmentationConfig`."""
        return self.evaluated(augment(images, config, key), labels)


def in_memory(images, labels):
    """Returns the `MemorySplit` of images in arrays.

    Args:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: int32 array `(num_images,)`.
    """
    return MemorySplit(images, labels, ArrayTransform())
