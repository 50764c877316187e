"""Labelled images in memory."""

import tensorflow as tf

from .split import Split


class MemorySplit(Split):
    """Labelled images of one size, in arrays. Entries are indices, or batches of them.

    Args:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: array `(num_images, ...)`: int32 classes of the images, or uint8 ones of
            their pixels.
        transform: see `Split`.
    """

    def __init__(self, images, labels, transform):
        super().__init__(transform)
        self.images, self.labels = images, labels

    @property
    def image_shape(self):
        return self.images.shape[1:]

    def __len__(self):
        return len(self.labels)

    def part(self, start, stop):
        images, labels = self.images[start:stop], self.labels[start:stop]
        return MemorySplit(images, labels, self.transform)

    def in_order(self):
        return tf.data.Dataset.from_tensor_slices((tf.range(len(self)),))

    def shuffled(self, key):
        order = tf.random.experimental.stateless_shuffle(tf.range(len(self)), key)
        return tf.data.Dataset.from_tensor_slices((order,))

    def loader(self):
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        return lambda index: (tf.gather(images, index), tf.gather(labels, index))
