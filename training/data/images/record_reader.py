"""Reads labelled JPEG files from TFRecord shards, one at a time and in order."""

import tensorflow as tf

from ..records.shard_reader import ShardReader


class RecordReader(ShardReader):
    """Makes datasets of `(file, index, encoded, label)` of some of a shard's records.

    Labels are int32.

    Args:
        shard_format: a `ShardFormat` of the bytes of a JPEG file and an int64 label.
        num_classes: int. Labels must be in `0 ... num_classes - 1`.
    """

    def __init__(self, shard_format, num_classes):
        super().__init__(shard_format, (tf.string, tf.int64))
        self.num_classes = num_classes

    def checked_features(self, features, place):
        encoded, label = features
        is_class = tf.debugging.Assert(
            (label >= 0) & (label < self.num_classes),
            [
                f"Labels must be in 0 ... {self.num_classes - 1}. Received:",
                label,
                *place,
            ],
        )
        with tf.control_dependencies([is_class]):
            return encoded, tf.cast(label, tf.int32)
