"""CIFAR-10, from TensorFlow Datasets or from a folder of TFRecords."""

import functools

import numpy as np

from ...errors import InputError
from .. import statistics, tfds_errors
from ..records import shards
from ..records.sharded_records import ShardedRecords
from ..splits import ShardedSplit
from . import decoding
from .array_transform import ArrayTransform, in_memory

NUM_CLASSES = 10
# The reference's normalisation. Its standard deviations are means over images, smaller
# than those of all pixels.
MEAN, STANDARD_DEVIATION = statistics.of_dataset("cifar10")

_IMAGE_SHAPE = (32, 32, 3)


def load(directory=None):
    """Returns the training and the test `MemorySplit` of CIFAR-10.

    Args:
        directory: folder with `cifar10-train-*.tfrecord.gz` and
            `cifar10-test-*.tfrecord.gz`, as `decoding` describes them.
            `None` takes `tfds.load("cifar10")`, which downloads it once.

    Raises:
        InputError: if the data is not there or is damaged.
    """
    read = _from_tfds if directory is None else functools.partial(_in_folder, directory)
    return read("train"), read("test")


def _in_folder(directory, split):
    found = shards.in_folder(directory, f"cifar10-{split}")
    reader = decoding.reader_of_pixels(decoding.IN_FOLDER, NUM_CLASSES, _IMAGE_SHAPE)
    records = ShardedRecords.whole(reader, *found)
    return ShardedSplit(records, ArrayTransform(), len(records)).in_memory()


def _from_tfds(split):
    import tensorflow_datasets as tfds

    try:
        dataset = tfds.load("cifar10", split=split, as_supervised=True)
    except tfds_errors.classes() as error:
        raise InputError(
            "TensorFlow Datasets could not load cifar10. Check the connection, or give "
            f"a folder of TFRecords as `data.directory`. ({error})"
        ) from error
    with tfds_errors.reading("cifar10"):
        batches = list(dataset.batch(1000).as_numpy_iterator())
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    _check_labels(labels, f"tfds cifar10 {split}")
    return in_memory(images, labels.astype(np.int32))


def _check_labels(labels, source):
    is_bad = (labels < 0) | (labels >= NUM_CLASSES)
    if is_bad.any():
        position = int(np.argmax(is_bad))
        raise InputError(
            f"Labels must be in 0 ... {NUM_CLASSES - 1}. "
            f"Received: label={labels[position]} in record {position} of {source}."
        )
