"""Labelled images in GZIP-compressed TFRecord files.

Every record is a `tf.train.Example` of two features: `image/encoded`, the bytes of one
JPEG file, and `label`, an int64.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf

from ...errors import InputError
from ...files.input_file import check_file, check_folder
from ..records import damage
from .split import Split, check_labels

_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def load(directory, pattern, image_shape, num_classes):
    """Returns the `Split` of all files that match a pattern, in the order of names.

    Args:
        directory: the folder.
        pattern: a glob pattern of file names.
        image_shape: `(height, width, channels)` that every image must have.
        num_classes: labels must be in `0 ... num_classes - 1`.

    Raises:
        InputError: if the folder or the files are missing, a file is truncated or
            damaged, or a record is not what it should be. The message names the file.
    """
    files = matching(directory, pattern)
    parts = [_load_file(file, image_shape, num_classes) for file in files]
    images, labels = zip(*parts, strict=True)
    return Split(np.concatenate(images), np.concatenate(labels))


def matching(directory, pattern):
    """Returns the paths of a folder's files that match a pattern, in order of names.

    Raises:
        InputError: if there is no such folder or no such file, or one of them cannot be
            read.
    """
    directory = Path(directory)
    check_folder(directory, "data directory")
    files = sorted(directory.glob(pattern))
    if not files:
        present = sorted(file.name for file in directory.iterdir())
        content = f"It holds: {', '.join(present[:8])}." if present else "It is empty."
        raise InputError(
            f"The data directory {directory} has no file named {pattern}. {content}"
        )
    for file in files:
        check_file(file, "data file")
    return files


def _load_file(file, image_shape, num_classes):
    _check_complete(file)
    records = tf.data.TFRecordDataset(str(file), compression_type="GZIP")
    dataset = records.batch(256).map(
        lambda batch: _parsed(batch, image_shape),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    try:
        batches = list(dataset.as_numpy_iterator())
    except tf.errors.OpError as error:
        index, reason = _first_damaged(file, image_shape)
        raise InputError(
            f"{file} is damaged, or holds other records than JPEG images of shape "
            f"{image_shape} with a label. Record {index}: {reason} Replace the record, "
            "or write the file without it."
        ) from error
    if not batches:
        raise InputError(f"{file} holds no records.")
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    check_labels(labels, num_classes, file)
    return images, labels.astype(np.int32)


def _first_damaged(file, image_shape):
    """Returns the index of the first record that cannot be read, and the reason."""
    index = 0
    try:
        for record in tf.data.TFRecordDataset(str(file), compression_type="GZIP"):
            _parsed(record[tf.newaxis], image_shape)
            index += 1
    except tf.errors.OpError as error:
        return index, damage.plain(error)
    return index, "it cannot be read."


def _check_complete(file):
    """Reads the GZIP stream to its checksum: TensorFlow does not notice every cut."""
    try:
        with gzip.open(file) as stream:
            while stream.read(1 << 20):
                pass
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{file} is truncated or damaged: {error}") from error


def _parsed(batch, image_shape):
    examples = tf.io.parse_example(batch, _FEATURES)

    def decode(encoded):
        # The default (fast) transform is off by up to 5 grey levels.
        image = tf.io.decode_jpeg(
            encoded, channels=image_shape[-1], dct_method="INTEGER_ACCURATE"
        )
        return tf.ensure_shape(image, image_shape)

    images = tf.map_fn(decode, examples["image/encoded"], fn_output_signature=tf.uint8)
    return images, examples["label"]  # (B, H, W, C), (B,)
