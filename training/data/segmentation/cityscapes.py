"""Cityscapes, streamed from TensorFlow Datasets."""

import numpy as np
import tensorflow as tf

from .. import image_files, tfds
from .transforms import IGNORED, Classes, SegmentationTransform

# The normalization of the reference, ImageNet's.
MEAN, STANDARD_DEVIATION = image_files.dataset_statistics("imagenet")
IMAGE_SIZE = (1024, 2048)

# Label id, name and color of the classes that are scored, in the order of train ids.
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
    tuple(name for _, name, _ in _CLASSES), tuple(color for _, _, color in _CLASSES)
)

_WRONG_LABELS = "Labels must be label ids of the data set, not train ids or colors."
_HOW_TO_GET = (
    "Register on https://www.cityscapes-dataset.com and put "
    "leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip into downloads/manual in "
    "the data folder of TFDS (~/tensorflow_datasets or TFDS_DATA_DIR)."
)
# Records from which the next one is drawn: with the PNG files of Cityscapes, 1.2 GB.
_SHUFFLE_BUFFER = 512


def train_ids():
    """Returns the int32 array `(256,)` that maps label ids to labels.

    Label ids that are not scored become 255, ignored; other numbers become -1. 255 is
    the label id -1 of license plates, in 8 bits.
    """
    table = np.full(256, -1, "int32")
    table[: _LAST_LABEL_ID + 1] = IGNORED
    table[255] = IGNORED
    for train_id, (label_id, *_) in enumerate(_CLASSES):
        table[label_id] = train_id
    return table


def load(directory, image_size):
    """Returns the training and the validation `TFDSSplit`: test labels are secret.

    Args:
        directory: Folder in which TFDS keeps its datasets. `None` takes its default.
        image_size: `(height, width)` of all images.

    Raises:
        InputError: If the data cannot be prepared. Errors inside a record only show
            when it is read.
    """
    table = tf.constant(train_ids())

    def decode(features):
        image = tf.io.decode_png(features["image_left"], channels=3)
        label_ids = tf.io.decode_png(features["segmentation_label"], channels=1)
        labels = tf.gather(table, tf.cast(label_ids[..., 0], tf.int32))
        are_known = tf.debugging.Assert(tf.reduce_all(labels >= 0), [_WRONG_LABELS])
        with tf.control_dependencies([are_known]):
            labels = tf.cast(labels, tf.uint8)
        shape = tuple(image_size)
        # A wrong `data.image_size` raises here.
        return tf.ensure_shape(image, (*shape, 3)), tf.ensure_shape(labels, shape)

    return tfds.find_splits(
        "cityscapes/semantic_segmentation",
        ("train", "validation"),
        decode,
        SegmentationTransform(),
        _SHUFFLE_BUFFER,
        remedy=_HOW_TO_GET,
        directory=directory,
    )
