"""Images with overlays of their classes in color."""

import numpy as np
import tensorflow as tf

from ...data.segmentation import IGNORED
from ...files.atomic_file import replacing


def write_overlay(path, image, labels, palette):
    """Writes an image, blended equally with the colors of its classes, as PNG.

    Replaces the file atomically. Pixels with label 255 do not change.

    Args:
        path: `pathlib.Path` of the PNG file, in an existing folder.
        image: Array `(height, width, 3)`. Pixels from 0 to 255.
        labels: Integer array `(height, width)`. Classes of the pixels.
        palette: Sequence with one `(red, green, blue)` per class.
    """
    encoded = tf.io.encode_png(blend(image, labels, palette)).numpy()
    with replacing(path) as temporary:
        temporary.write_bytes(encoded)


def blend(image, labels, palette):
    """Returns the uint8 pixels of `write_overlay`."""
    image, labels = np.asarray(image, "float32"), np.asarray(labels)
    is_ignored = labels == IGNORED
    colors = np.asarray(palette, "float32")[np.where(is_ignored, 0, labels)]
    mixed = np.where(is_ignored[..., None], image, (image + colors) / 2)
    return np.clip(np.rint(mixed), 0, 255).astype("uint8")
