"""Labelled images on disk, too many for the memory."""

import numpy as np
import tensorflow as tf

from ..records import damage
from .memory_split import MemorySplit
from .split import Split

_READ_AT_ONCE = 256


class ShardedSplit(Split):
    """Labelled images in TFRecord shards. Entries are the records.

    Args:
        records: the `ShardedRecords`, whose reader makes the examples.
        transform: see `Split`.
        shuffle_buffer: int. Records from which the next one is drawn.
    """

    def __init__(self, records, transform, shuffle_buffer):
        super().__init__(transform)
        self.records = records
        self.shuffle_buffer = shuffle_buffer

    def __len__(self):
        return len(self.records)

    def part(self, start, stop):
        part = self.records.part(start, stop)
        return ShardedSplit(part, self.transform, self.shuffle_buffer)

    def in_order(self):
        return self.records.in_order()

    def shuffled(self, key):
        return self.records.shuffled(key, self.shuffle_buffer)

    def loader(self):
        damage.searched_by(self._first_damaged)
        return self.records.reader.decode

    def in_memory(self):
        """Returns the `MemorySplit` of the same examples.

        Raises:
            InputError: if a record cannot be used.
        """
        with damage.reported():
            examples = self.in_order().map(
                self.loader(), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            )
            batches = list(examples.batch(_READ_AT_ONCE).as_numpy_iterator())
        images, labels = map(np.concatenate, zip(*batches, strict=True))
        return MemorySplit(images, labels, self.transform)

    def _first_damaged(self):
        return self.records.first_damaged(self.transform.evaluated)
