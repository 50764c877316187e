"""Cityscapes, from TensorFlow Datasets or from a folder of TFRecords."""

import numpy as np
import tensorflow as tf

from .. import image_files, tfds
from ..records import shards
from ..records.record_reader import RecordReader, ShardFormat, first_error
from ..splits import ShardedSplit
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
# The first bytes of a PNG file, and the value of byte 24: bits of a sample.
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS = b"\x08"
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
    """Returns the training and the validation `ShardedSplit`: test labels are secret.

    Args:
        directory: folder with `cityscapes-train-*.tfrecord.gz` and
            `cityscapes-validation-*.tfrecord.gz`, GZIP-compressed TFRecords of
            `tf.train.Example`s with the features `image/encoded` (a JPEG or PNG file)
            and `label/encoded` (a PNG file of label ids). `None` takes TFDS.
        image_size: `(height, width)` of all images.

    Raises:
        InputError: If the data is not there, or a file is truncated. Errors
            inside a record only show when it is read.
    """
    if directory is None:
        shard_format = _OF_TFDS
        found = tfds.find_shards(_TFDS_NAME, ("train", "validation"), _HOW_TO_GET)
    else:
        shard_format = _IN_FOLDER
        found = [
            shards.in_folder(directory, f"cityscapes-{split}")
            for split in ("train", "validation")
        ]
    decode = _LabeledImageDecoder(shard_format.features, image_size, train_ids())
    reader = RecordReader(shard_format, decode)
    transform = SegmentationTransform()
    return tuple(
        ShardedSplit.whole(reader, split, transform, _SHUFFLE_BUFFER) for split in found
    )


class _LabeledImageDecoder:
    """Decodes the features of a record, for a `RecordReader`.

    The example is uint8 pixels `(height, width, 3)` and uint8 labels `(height, width)`.

    Args:
        names: Names of the features: the bytes of a JPEG or PNG file, and the bytes of
            a PNG file of label ids.
        image_size: `(height, width)` that all images must have.
        train_ids: int32 array `(256,)`. The label of each label id; -1 for other
            numbers.
    """

    def __init__(self, names, image_size, train_ids):
        self.image_name, self.labels_name = names
        self.image_size = tuple(image_size)
        self.train_ids = train_ids

    def __call__(self, encoded_image, encoded_labels):
        image = _pixels(_decode_image, encoded_image)
        # All channels: gray values of colors would look like label ids.
        label_ids = _pixels(tf.io.decode_png, encoded_labels)
        # Labels have one channel, or their check fails.
        labels = tf.cast(tf.reduce_max(label_ids, axis=-1), tf.int32)
        labels = tf.gather(self.train_ids, labels)
        error = first_error(
            *self._checks(image, self.image_name, 3),
            *self._checks(label_ids, self.labels_name, 1),
            (
                _is_png_of_8_bits(encoded_labels),
                f"`{self.labels_name}` must be a PNG file of 8 bits a pixel.",
            ),
            (
                tf.reduce_all(labels >= 0),
                f"Labels in `{self.labels_name}` must be label ids of the data set, "
                "not train ids or colors.",
            ),
        )
        image.set_shape((*self.image_size, 3))
        labels.set_shape(self.image_size)
        return (image, tf.cast(labels, tf.uint8)), error

    def _checks(self, pixels, name, channels):
        expected = (*self.image_size, channels)
        return (
            (
                tf.size(pixels) > 0,
                f"`{name}` is not an image of the right kind, or damaged.",
            ),
            (
                tf.reduce_all(tf.shape(pixels) == expected),
                tf.strings.format(
                    f"`{name}` must have {channels} channels of size "
                    f"{self.image_size}, `data.image_size`. Received: {{}}.",
                    tf.shape(pixels),
                ),
            ),
        )


def _decode_image(encoded):
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: image_files.decode_jpeg(encoded),
        lambda: tf.io.decode_png(encoded, channels=3),
    )


def _is_png_of_8_bits(encoded):
    """Returns whether labels are exact: other depths are scaled, JPEG files smear."""
    start = tf.strings.substr(encoded, 0, tf.minimum(tf.strings.length(encoded), 25))
    start = tf.strings.join([start, b"\0" * 25])
    is_png = tf.strings.substr(start, 0, len(_SIGNATURE)) == _SIGNATURE
    return is_png & (tf.strings.substr(start, 24, 1) == _EIGHT_BITS)


def _pixels(decode, encoded):
    """Returns the uint8 `(height, width, channels)` of a file; empty if it fails."""
    values = tf.data.Dataset.from_tensors(encoded).map(decode).ignore_errors()
    return values.reduce(tf.zeros((0, 0, 0), tf.uint8), lambda _, value: value)
