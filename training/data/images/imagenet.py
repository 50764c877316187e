"""ImageNet and its subset Imagenette, streamed from TensorFlow Datasets."""

from typing import NamedTuple

import tensorflow as tf

from .. import image_files, tfds
from .transforms import JPEGTransform


class Source(NamedTuple):
    """A dataset of TFDS, its number of classes, and how to get it."""

    tfds_name: str
    num_classes: int
    how_to_get: str


SOURCES = {
    "imagenet2012": Source(
        "imagenet2012",
        1000,
        "Register on https://image-net.org/download-images and put "
        "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into downloads/manual in "
        "the data folder of TFDS (~/tensorflow_datasets or TFDS_DATA_DIR).",
    ),
    "imagenette": Source(
        "imagenette/320px-v2", 10, "Check the connection to download it."
    ),
}
# The normalization of torchvision's models and the reference.
MEAN, STANDARD_DEVIATION = image_files.dataset_statistics("imagenet")
IMAGE_SIZE = 224
# Records from which the next one is drawn: with ImageNet's JPEG files, 0.9 GB.
_SHUFFLE_BUFFER = 8192


def load(name, directory, image_size):
    """Returns the training and the test `TFDSSplit`.

    The test split is the validation set: the labels of ImageNet's test set are secret.

    Args:
        name: A key of `SOURCES`.
        directory: Folder in which TFDS keeps its datasets. `None` takes its default.
        image_size: Positive integer. Side of the squares that streams hold.

    Raises:
        InputError: If the data are missing or corrupt.
    """
    source = SOURCES[name]
    return tfds.find_splits(
        source.tfds_name,
        ("train", "validation"),
        lambda features: (features["image"], tf.cast(features["label"], tf.int32)),
        JPEGTransform(image_size),
        _SHUFFLE_BUFFER,
        remedy=source.how_to_get,
        directory=directory,
    )
