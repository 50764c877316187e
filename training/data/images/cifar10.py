"""CIFAR-10, from TensorFlow Datasets or from a `.npz` file."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from ...errors import InputError, reading
from ...files.input_file import check_file
from .. import image_files, tfds
from .transforms import in_memory

NUM_CLASSES = 10
# The reference's normalization. Its standard deviations are means over images, smaller
# than the standard deviations of all pixels.
MEAN, STANDARD_DEVIATION = image_files.dataset_statistics("cifar10")


def load(directory=None):
    """Returns the training and the test `MemorySplit` of CIFAR-10.

    Args:
        directory: Folder with `cifar10.npz`, whose arrays `x_train`, `y_train`,
            `x_test` and `y_test` are uint8 images `(num_images, 32, 32, 3)` and their
            labels. `None` takes `tfds.load("cifar10")`, which downloads it once.

    Raises:
        InputError: If the data are missing or corrupt.
    """
    if directory is None:
        return _from_tfds("train"), _from_tfds("test")
    path = Path(directory) / "cifar10.npz"
    check_file(path, "data file")
    with reading(path, "Write it again with `numpy.savez`."), np.load(path) as file:
        return tuple(
            _check(file[f"x_{split}"], file[f"y_{split}"])
            for split in ("train", "test")
        )


def _check(images, labels):
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise ValueError(
            "Images must be uint8 (num_images, 32, 32, 3). Received: "
            f"{images.dtype} {images.shape}."
        )
    if np.size(labels) != len(images) or np.any((labels < 0) | (labels > 9)):
        raise ValueError("There must be one label from 0 to 9 for each image.")
    return in_memory(images, labels.reshape(-1).astype(np.int32))


def _from_tfds(split):
    import tensorflow_datasets

    remedy = "Check the connection, or set `data.directory`, a folder with cifar10.npz."
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
