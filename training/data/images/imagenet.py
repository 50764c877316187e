"""ImageNet and its subset Imagenette, streamed from disk.

Every record is a `tf.train.Example` of two features: `image/encoded`, the bytes of one
JPEG file, and `label`, an int64; in TFDS the first is called `image`.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from .. import image_files, tfds
from ..records import shards
from ..records.record_reader import RecordReader, ShardFormat, first_error
from ..splits import ShardedSplit
from .transforms import JPEGTransform

IN_FOLDER = ShardFormat(
    "GZIP", {"image/encoded": tf.string, "label": tf.int64}, shards.COUNTED_HERE
)
_OF_TFDS = ShardFormat(
    "", {"image": tf.string, "label": tf.int64}, shards.COUNTED_BY_TFDS
)


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
    """Returns the training and the test `ShardedSplit`.

    The test split is the validation set: the labels of ImageNet's test set are secret.

    Args:
        name: A key of `SOURCES`.
        directory: Folder with `<name>-train-*.tfrecord.gz` and
            `<name>-test-*.tfrecord.gz`, as described above, with images of any size.
            `None` reads TFDS.
        image_size: Positive integer. Side of the squares that streams hold.

    Raises:
        InputError: If the data are missing or corrupt.
    """
    source = SOURCES[name]
    if directory is None:
        shard_format = _OF_TFDS
        found = tfds.find_shards(
            source.tfds_name, ("train", "validation"), source.how_to_get
        )
    else:
        shard_format = IN_FOLDER
        found = [
            shards.in_folder(directory, f"{name}-{split}")
            for split in ("train", "test")
        ]
    decode = functools.partial(_jpeg_file, num_classes=source.num_classes)
    reader = RecordReader(shard_format, decode)
    transform = JPEGTransform(image_size)
    return tuple(
        ShardedSplit.whole(reader, split, transform, _SHUFFLE_BUFFER) for split in found
    )


def label_check(label, num_classes):
    """Returns whether a label is in range, and the error if it is not."""
    return (
        (label >= 0) & (label < num_classes),
        tf.strings.format(
            f"Labels must be in 0 ... {num_classes - 1}. Received: {{}}.", label
        ),
    )


def _jpeg_file(encoded, label, num_classes):
    error = first_error(
        label_check(label, num_classes),
        (
            image_files.is_whole_jpeg(encoded),
            "An image is not a JPEG file, or truncated.",
        ),
    )
    return (encoded, tf.cast(label, tf.int32)), error
