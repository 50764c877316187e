"""Labelled images on disk, too many for the memory."""

import sys

import tensorflow as tf

from ..records import damage, jpeg
from . import image_transforms

# Records from which the next one is drawn: with ImageNet's JPEG files, 0.9 GB.
SHUFFLE_BUFFER = 8192


class StreamedSplit:
    """Images of any size in TFRecord shards, streamed as squares of one size.

    Args:
        records: the `ShardedRecords`, whose reader is a `RecordReader`.
        image_size: int. Side of the squares.
    """

    def __init__(self, records, image_size):
        self.records = records
        self.image_size = image_size

    def __len__(self):
        return len(self.records)

    @property
    def image_shape(self):
        """`(height, width, channels)` of the images that the streams hold."""
        return (self.image_size, self.image_size, 3)

    def part(self, start, stop):
        """Returns the images from `start` to before `stop`."""
        return StreamedSplit(self.records.part(start, stop), self.image_size)

    def training_batches(self, batch_size, augmentation, seed, epochs):
        """See `training.data.training_batches`."""
        damage.searched_by(self._undecodable)
        seed = tf.constant(seed, tf.int64)

        def example(number, record):
            file, index, encoded, label = record
            encoded = jpeg.checked(encoded, file, index)
            key = tf.stack([seed, number])
            return self._augmented(encoded, augmentation, key), label

        def epoch_batches(epoch):
            key = tf.stack([seed, epoch])
            stream = self.records.shuffled(key, SHUFFLE_BUFFER)
            # Numbers the examples of the whole run: each gets its own augmentation.
            stream = stream.enumerate(epoch * len(self))
            return _parallel_map(stream, example).batch(batch_size)

        stream = tf.data.Dataset.range(epochs.start, epochs.stop)
        return stream.flat_map(epoch_batches)

    def evaluation_batches(self, batch_size):
        """See `training.data.evaluation_batches`."""
        damage.searched_by(self._undecodable)

        def example(file, index, encoded, label):
            encoded = jpeg.checked(encoded, file, index)
            image = image_transforms.resized_center_crop(encoded, self.image_size)
            return image, label

        batches = _parallel_map(self.records.in_order(), example).batch(batch_size)
        # Without it Keras takes the end of the images for missing ones, and warns.
        return batches.apply(
            tf.data.experimental.assert_cardinality(-(-len(self) // batch_size))
        )

    def _augmented(self, encoded, augmentation, key):
        crop_key, flip_key = tf.unstack(tf.random.split(key))
        if augmentation.resized_crop:
            image = image_transforms.random_resized_crop(
                encoded, self.image_size, crop_key
            )
        else:
            image = image_transforms.resized_center_crop(encoded, self.image_size)
        if augmentation.horizontal_flip:
            image = image_transforms.random_flip(image, flip_key)
        return image

    def _undecodable(self):
        """Returns file, index and words of the first image that cannot be decoded."""

        def looked_at(file, index, encoded, label):
            return file, index, jpeg.can_be_decoded(encoded)

        print("Looking for the image that cannot be decoded.", file=sys.stderr)
        images = _parallel_map(self.records.in_order(), looked_at)
        damaged = images.filter(lambda file, index, is_whole: not is_whole).take(1)
        for file, index, _ in damaged.as_numpy_iterator():
            words = (
                "An image is a damaged JPEG file, or one of another size than it says."
            )
            return file.decode(), index, words
        return None


def _parallel_map(dataset, function):
    return dataset.map(
        function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
