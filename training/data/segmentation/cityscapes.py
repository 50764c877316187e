"""Cityscapes, from TensorFlow Datasets or from a folder of TFRecords."""

import numpy as np
import tensorflow as tf

from .. import statistics
from ..records import shards
from ..records.record_reader import RecordReader, ShardFormat
from ..records.sharded_records import ShardedRecords
from ..splits import ShardedSplit
from .classes import IGNORED, Classes
from .decoding import LabelledImageDecoder
from .transform import SegmentationTransform

# Of the reference, ImageNet's.
MEAN, STANDARD_DEVIATION = statistics.of_dataset("imagenet")
IMAGE_SIZE = (1024, 2048)

# Label id, name and colour of the classes that are scored, in the order of train ids.
_CLASSES = (
    (7, "road", (128, 64, 128)),
    (8, "sidewalk", (244, 35, 232)),
    (11, "building", (70, 70, 70)),
    (12, "wall", (102, 102, 156)),
    (13, "fence", (190, 153, 153)),
    (17, "pole", (153, 153, 153)),
    (19, "traffic light", (250, 170, 30)),
    (20, "traffic sign", (220, 220, 0)),
    (21, "vegetation", (107, 142, 35)),
    (22, "terrain", (152, 251, 152)),
    (23, "sky", (70, 130, 180)),
    (24, "person", (220, 20, 60)),
    (25, "rider", (255, 0, 0)),
    (26, "car", (0, 0, 142)),
    (27, "truck", (0, 0, 70)),
    (28, "bus", (0, 60, 100)),
    (31, "train", (0, 80, 100)),
    (32, "motorcycle", (0, 0, 230)),
    (33, "bicycle", (119, 11, 32)),
)
_LAST_LABEL_ID = 33
CLASSES = Classes(
    tuple(name for _, name, _ in _CLASSES), tuple(colour for _, _, colour in _CLASSES)
)

_IN_FOLDER = ShardFormat(
    "GZIP",
    {"image/encoded": tf.string, "label/encoded": tf.string},
    shards.COUNTED_HERE,
)
_OF_TFDS = ShardFormat(
    "",
    {"image_left": tf.string, "segmentation_label": tf.string},
    shards.COUNTED_BY_TFDS,
)
_TFDS_NAME = "cityscapes/semantic_segmentation"
_HOW_TO_GET = (
    "Register on https://www.cityscapes-dataset.com and put "
    "leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip into downloads/manual in "
    "the data folder of TFDS (~/tensorflow_datasets or TFDS_DATA_DIR)."
)
# Records from which the next one is drawn: with the PNG files of Cityscapes, 1.2 GB.
_SHUFFLE_BUFFER = 512


def train_ids():
    """Returns the int32 array `(256,)` that maps label ids to labels.

    A label id that is not scored becomes 255, ignored; what is no label id becomes -1.
    255 is one, that of nothing: the id -1 of licence plates in 8 bits.
    """
    table = np.full(256, -1, "int32")
    table[: _LAST_LABEL_ID + 1] = IGNORED
    table[255] = IGNORED
    for train_id, (label_id, *_) in enumerate(_CLASSES):
        table[label_id] = train_id
    return table


def load(directory, image_size):
    """Returns the training and the validation `ShardedSplit`: test labels are secret.

    Args:
        directory: folder with `cityscapes-train-*.tfrecord.gz` and
            `cityscapes-validation-*.tfrecord.gz`, GZIP-compressed TFRecords of
            `tf.train.Example`s with the features `image/encoded` (a JPEG or PNG file)
            and `label/encoded` (a PNG file of label ids). `None` takes TFDS.
        image_size: `(height, width)` of all images.

    Raises:
        InputError: if the data is not there, or a file is truncated. What is wrong
            inside a record only shows when it is read.
    """
    if directory is None:
        shard_format, found = (
            _OF_TFDS,
            shards.of_tfds(_TFDS_NAME, ("train", "validation"), _HOW_TO_GET),
        )
    else:
        shard_format, found = (
            _IN_FOLDER,
            [
                shards.in_folder(directory, f"cityscapes-{split}")
                for split in ("train", "validation")
            ],
        )
    decode = LabelledImageDecoder(shard_format.features, image_size, train_ids())
    reader = RecordReader(shard_format, decode)
    transform = SegmentationTransform()
    return tuple(
        ShardedSplit(ShardedRecords.whole(reader, *split), transform, _SHUFFLE_BUFFER)
        for split in found
    )
