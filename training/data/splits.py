"""Splits of labeled images; `tfds.py` has the split of a dataset on disk."""

import abc

import tensorflow as tf

from ..errors import InputError


class Split(abc.ABC):
    """Labeled images in a fixed order, and the transform that streams apply.

    A split streams entries. An entry identifies one example (image and label),
    so that large images are read after shuffling.

    Args:
        transform: Object with the functions `prepare(*example)`, which prepares
            examples for evaluation, and `augment(*example, config, key)`, which
            changes them at random for training; the Boolean `of_batches`, whether both
            take batches of examples; and the Boolean `drops_remainder`, whether
            training drops a smaller last batch.
    """

    def __init__(self, transform):
        self.transform = transform

    @property
    def image_shape(self):
        """`(height, width, channels)` of the images in streams."""
        return self.transform.image_shape

    @abc.abstractmethod
    def __len__(self):
        """Returns the number of examples."""

    @abc.abstractmethod
    def part(self, start, stop):
        """Returns the split of the examples from `start` to before `stop`."""

    @abc.abstractmethod
    def in_order(self):
        """Returns the dataset of the entries, tuples, in their order."""

    @abc.abstractmethod
    def shuffle(self, key):
        """Returns the dataset in an order that depends on the int64 `(2,)` key only."""

    @abc.abstractmethod
    def loader(self):
        """Returns the function from the parts of an entry to the example."""


class IndexedSplit(Split):
    """A split whose entries are the indices of its examples."""

    def in_order(self):
        return tf.data.Dataset.from_tensor_slices((tf.range(len(self)),))

    def shuffle(self, key):
        order = tf.random.experimental.stateless_shuffle(tf.range(len(self)), key)
        return tf.data.Dataset.from_tensor_slices((order,))


class MemorySplit(IndexedSplit):
    """Labeled images of one size, in arrays. Entries are indices, or batches of them.

    Args:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: Array `(num_images, ...)`: int32 classes of the images, or uint8 classes
            of their pixels.
        transform: See `Split`.
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

    def loader(self):
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        return lambda index: (tf.gather(images, index), tf.gather(labels, index))


def first(split, count, name):
    """Returns the first `count` examples of a split, or all of them for `None`.

    Args:
        split: `Split`.
        count: Optional positive integer.
        name: String. The name of `count` in the config.

    Raises:
        InputError: If the split has fewer examples.
    """
    if count is not None and count > len(split):
        raise InputError(
            f"`data.{name}` must be at most {len(split)}, the number of images there "
            f"are. Received: {name}={count}."
        )
    return split.part(0, count)
