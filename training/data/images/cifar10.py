"""CIFAR-10, from TensorFlow Datasets or from a folder of TFRecords."""

import functools

import numpy as np
import tensorflow as tf

from ...errors import InputError
from .. import image_files, tfds
from ..records import shards
from ..records.record_reader import RecordReader, first_error
from ..splits import ShardedSplit
from .imagenet import IN_FOLDER, label_check
from .transforms import ArrayTransform, in_memory

NUM_CLASSES = 10
# The reference's normalization. Its standard deviations are means over images, smaller
# than the standard deviations of all pixels.
MEAN, STANDARD_DEVIATION = image_files.dataset_statistics("cifar10")

_IMAGE_SHAPE = (32, 32, 3)


def load(directory=None):
    """Returns the training and the test `MemorySplit` of CIFAR-10.

    Args:
        directory: Folder with `cifar10-train-*.tfrecord.gz` and
            `cifar10-test-*.tfrecord.gz`, records as in `imagenet`.
            `None` takes `tfds.load("cifar10")`, which downloads it once.

    Raises:
        InputError: If the data are missing or corrupt.
    """
    read = _from_tfds if directory is None else functools.partial(_in_folder, directory)
    return read("train"), read("test")


def _in_folder(directory, split):
    found = shards.in_folder(directory, f"cifar10-{split}")
    reader = RecordReader(IN_FOLDER, _decode)
    return ShardedSplit.whole(reader, found, ArrayTransform(), 1).in_memory()


def _decode(encoded, label):
    pixels = image_files.decode_jpeg(encoded)
    error = first_error(
        label_check(label, NUM_CLASSES),
        (
            tf.reduce_all(tf.shape(pixels) == _IMAGE_SHAPE),
            tf.strings.format(
                f"Images must be of shape {_IMAGE_SHAPE}. Received: {{}}.",
                tf.shape(pixels),
            ),
        ),
    )
    pixels.set_shape(_IMAGE_SHAPE)
    return (pixels, tf.cast(label, tf.int32)), error


def _from_tfds(split):
    import tensorflow_datasets

    remedy = "Check the connection, or give a folder of TFRecords as `data.directory`."
    with tfds.preparing("cifar10", remedy):
        dataset = tensorflow_datasets.load("cifar10", split=split, as_supervised=True)
    try:
        batches = list(dataset.batch(1000).as_numpy_iterator())
    except tf.errors.OpError as error:
        raise InputError(
            "TensorFlow Datasets could not read cifar10: one of its files is damaged, "
            "or gone. Prepare it again with `tfds build cifar10 --overwrite`."
        ) from error
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    return in_memory(images, labels.astype(np.int32))
