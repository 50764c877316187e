"""The rows of batches that one of several readers makes."""

from typing import NamedTuple

import tensorflow as tf
from keras import tree


class Share(NamedTuple):
    """One of `count` contiguous parts of every batch, all of about as many rows.

    Readers of all shares of a stream together make what a single reader makes.

    Attributes:
        index: int. Which of the parts, counted from 0.
        count: int. How many there are.
    """

    index: int = 0
    count: int = 1

    def bounds(self, size):
        """Returns the first row, and that after the last one, of a batch of `size`."""
        return size * self.index // self.count, size * (self.index + 1) // self.count

    def rows(self, *batch):
        """Returns its rows of a nest of tensors `(batch, ...)`."""
        if self.count == 1:
            return batch

        def part(tensor):
            # A static size stays one.
            start, stop = self.bounds(tensor.shape[0] or tf.shape(tensor)[0])
            return tensor[start:stop]

        return tree.map_structure(part, batch)

    def entries(self, dataset, batch_size, num_entries):
        """Returns the entries of a dataset that are its rows of the batches to come.

        Args:
            dataset: of `num_entries` entries, not batched yet.
            batch_size: int. Entries of all shares together, a multiple of `count`.
            num_entries: int. Further ones are left out.
        """
        if self.count == 1:
            return dataset

        def is_own(number, entry):
            del entry
            row = number % batch_size
            size = tf.minimum(
                tf.cast(batch_size, row.dtype), num_entries - number + row
            )
            start, stop = self.bounds(size)
            return (start <= row) & (row < stop)

        own = dataset.enumerate().filter(is_own)
        return own.map(lambda number, entry: entry)


WHOLE = Share()
