"""Labelled images in memory."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class MemorySplit(NamedTuple):
    """Images of one size with a label for every pixel, in a fixed order.

    Attributes:
        images: uint8 array `(num_images, height, width, 3)`.
        labels: uint8 array `(num_images, height, width)`; 255 is ignored.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self):
        return len(self.labels)

    def part(self, start, stop):
        """Returns the images from `start` to before `stop`."""
        return MemorySplit(self.images[start:stop], self.labels[start:stop])

    def in_order(self):
        """Returns the dataset of the `(image, labels)` of all images in their order."""
        return tf.data.Dataset.from_tensor_slices((self.images, self.labels))

    def shuffled(self, key):
        """Returns them in an order that is a function of the int64 `(2,)` key."""
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        order = tf.random.experimental.stateless_shuffle(tf.range(len(self)), key)
        return tf.data.Dataset.from_tensor_slices(order).map(
            lambda index: (images[index], labels[index])
        )
