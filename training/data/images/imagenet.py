"""ImageNet and its part Imagenette, streamed from disk."""

from typing import NamedTuple

from .. import statistics
from ..records import shards
from ..records.sharded_records import ShardedRecords
from ..splits import ShardedSplit
from . import decoding
from .jpeg_transform import JPEGTransform


class Source(NamedTuple):
    """A dataset of TFDS, and what it takes to get it."""

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
# Of torchvision's models and the reference.
MEAN, STANDARD_DEVIATION = statistics.of_dataset("imagenet")
IMAGE_SIZE = 224
# Records from which the next one is drawn: with ImageNet's JPEG files, 0.9 GB.
_SHUFFLE_BUFFER = 8192


def load(name, directory, image_size):
    """Returns the training and the test `ShardedSplit`; the latter is the validation
    set, since the labels of ImageNet's test set are not public.

    Args:
        name: a key of `SOURCES`.
        directory: folder with `<name>-train-*.tfrecord.gz` and
            `<name>-test-*.tfrecord.gz`, as `decoding` describes them, with images
            of any size. `None` takes TFDS.
        image_size: int. Side of the squares that are made of the images.

    Raises:
        InputError: if the data is not there or is damaged.
    """
    source = SOURCES[name]
    if directory is None:
        shard_format, found = (
            decoding.OF_TFDS,
            shards.of_tfds(
                source.tfds_name, ("train", "validation"), source.how_to_get
            ),
        )
    else:
        shard_format, found = (
            decoding.IN_FOLDER,
            [
                shards.in_folder(directory, f"{name}-{split}")
                for split in ("train", "test")
            ],
        )
    reader = decoding.reader_of_files(shard_format, source.num_classes)
    transform = JPEGTransform(image_size)
    return tuple(
        ShardedSplit(ShardedRecords.whole(reader, *split), transform, _SHUFFLE_BUFFER)
        for split in found
    )
