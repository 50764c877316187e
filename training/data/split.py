"""Labelled images."""

from typing import NamedTuple

import numpy as np

from training.errors import InputError


class Split(NamedTuple):
    """Images with their labels, in a fixed order.

    Attributes:
        images: uint8 array `(num_images, height, width, channels)`.
        labels: int32 array `(num_images,)`.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self):
        return len(self.labels)

    def part(self, start, stop):
        """Returns the images from `start` to before `stop`."""
        return Split(self.images[start:stop], self.labels[start:stop])


def check_labels(labels, num_classes, source):
    """Raises `InputError` if a label is not in `0 ... num_classes - 1`."""
    labels = np.asarray(labels)
    is_bad = (labels < 0) | (labels >= num_classes)
    if is_bad.any():
        position = int(np.argmax(is_bad))
        raise InputError(
            f"Labels must be in 0 ... {num_classes - 1}. "
            f"Received: label={labels[position]} in record {position} of {source}."
        )
