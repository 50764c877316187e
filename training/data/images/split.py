"""Labelled images in memory."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ...errors import InputError
from .augmentation import augment


class Split(NamedTuple):
    """Images with their labels, in a fixed order.

    Attributes:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: int32 array `(num_images,)`.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self):
        return len(self.labels)

    @property
    def image_shape(self):
        """`(height, width, channels)` of the images that the streams hold."""
        return self.images.shape[1:]

    def part(self, start, stop):
        """Returns the images from `start` to before `stop`."""
        return Split(self.images[start:stop], self.labels[start:stop])

    def training_batches(self, batch_size, augmentation, seed, epochs):
        """See `training.data.training_batches`."""
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        indices = tf.range(len(self))
        seed = tf.constant(seed, tf.int64)
        steps_per_epoch = -(-len(self) // batch_size)

        def shuffled(epoch):
            order = tf.random.experimental.stateless_shuffle(
                indices, tf.stack([seed, epoch])
            )
            return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

        def batch(step, chosen):
            key = tf.stack([seed, step])
            pixels = augment(tf.gather(images, chosen), augmentation, key)
            return tf.cast(pixels, tf.float32), tf.gather(labels, chosen)

        stream = tf.data.Dataset.range(epochs.start, epochs.stop).flat_map(shuffled)
        stream = stream.enumerate(epochs.start * steps_per_epoch)
        return stream.map(batch, num_parallel_calls=tf.data.AUTOTUNE)

    def evaluation_batches(self, batch_size):
        """See `training.data.evaluation_batches`."""
        dataset = tf.data.Dataset.from_tensor_slices((self.images, self.labels))
        return dataset.batch(batch_size).map(
            lambda images, labels: (tf.cast(images, tf.float32), labels)
        )


def check_labels(labels, num_classes, source):
    """Raises `InputError` if a label is not in `0 ... num_classes - 1`."""
    labels = np.asarray(labels)
    is_bad = (labels < 0) | (labels >= num_classes)
    if is_bad.any():
        position = int(np.argmax(is_bad))
        raise InputError(
            f"Labels must be in 0 ... {num_classes - 1}. "
            f"Received: label={labels[position]} in record {position} of {source}."
        )
