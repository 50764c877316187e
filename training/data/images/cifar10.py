"""CIFAR-10, from TensorFlow Datasets or from a folder of TFRecords."""

import numpy as np

from ...errors import InputError
from .. import tfds_errors
from ..records import damage
from . import tfrecords
from .split import Split, check_labels

NUM_CLASSES = 10
# The reference's normalisation, for pixels 0 to 255. Its standard deviations are means
# over images, smaller than those of all pixels.
MEAN = tuple(255 * value for value in (0.4914, 0.4822, 0.4465))
STANDARD_DEVIATION = tuple(255 * value for value in (0.2023, 0.1994, 0.2010))

_IMAGE_SHAPE = (32, 32, 3)


def load(directory=None):
    """Returns the training `Split` and the test `Split` of CIFAR-10.

    Args:
        directory: folder with `cifar10-train-*.tfrecord.gz` and
            `cifar10-test-*.tfrecord.gz`, as `tfrecords` reads them.
            `None` takes `tfds.load("cifar10")`, which downloads it once.

    Raises:
        InputError: if the data is not there or is damaged.
    """
    if directory is None:
        return _from_tfds("train"), _from_tfds("test")
    return tuple(
        tfrecords.load(
            directory, f"cifar10-{split}-*.tfrecord.gz", _IMAGE_SHAPE, NUM_CLASSES
        )
        for split in ("train", "test")
    )


def _from_tfds(split):
    import tensorflow_datasets as tfds

    try:
        dataset = tfds.load("cifar10", split=split, as_supervised=True)
    except tfds_errors.classes() as error:
        raise InputError(
            "TensorFlow Datasets could not load cifar10. Check the connection, or give "
            f"a folder of TFRecords as `data.directory`. ({error})"
        ) from error
    with damage.reported():
        batches = list(dataset.batch(1000).as_numpy_iterator())
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    check_labels(labels, NUM_CLASSES, f"tfds cifar10 {split}")
    return Split(images, labels.astype(np.int32))
