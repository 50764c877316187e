"""Scikit-learn's handwritten digits, embedded. See `digits.md` for their origin."""

from pathlib import Path

import numpy as np

from .array_transform import in_memory

NUM_CLASSES = 10
# Of the training pixels.
MEAN = (4.8924,)
STANDARD_DEVIATION = (6.0250,)

_FILE = Path(__file__).with_name("digits.npz")


def load():
    """Returns the training `MemorySplit` of 1438 digits and the test one of 359.

    Images are uint8 `(8, 8, 1)` with pixels 0 to 16; both splits hold each class in the
    same proportion.
    """
    with np.load(_FILE) as file:
        images = file["images"][..., None]
        labels = file["labels"].astype("int32")
        is_test = file["is_test"]
    return (
        in_memory(images[~is_test], labels[~is_test]),
        in_memory(images[is_test], labels[is_test]),
    )
