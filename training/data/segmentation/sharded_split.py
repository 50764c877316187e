"""Images with a label for every pixel on disk, too many for the memory."""

import tensorflow as tf

# Records from which the next one is drawn: with the PNG files of Cityscapes, 1.2 GB.
SHUFFLE_BUFFER = 512


class ShardedSplit:
    """Images of one size with a label for every pixel, in TFRecord shards.

    Args:
        records: the `ShardedRecords`, whose reader is an `ExampleReader`.
    """

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def part(self, start, stop):
        """Returns the images from `start` to before `stop`."""
        return ShardedSplit(self.records.part(start, stop))

    def in_order(self):
        """Returns the dataset of the `(image, labels)` of all images in their order."""
        return self._decoded(self.records.in_order())

    def shuffled(self, key):
        """Returns them in an order that is a function of the int64 `(2,)` key."""
        return self._decoded(self.records.shuffled(key, SHUFFLE_BUFFER))

    def _decoded(self, records):
        return records.map(
            self.records.reader.decode,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
