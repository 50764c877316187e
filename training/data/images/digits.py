"""Scikit-learn's handwritten digits, embedded. See `digits.md` for their origin."""

from pathlib import Path

import numpy as np

from .transforms import in_memory

NUM_CLASSES = 10
# Statistics of the training pixels.
MEAN = (4.8924,)
STANDARD_DEVIATION = (6.0250,)

_FILE = Path(__file__).with_name("digits.npz")


def load():
    """Returns the `MemorySplit`s of 1438 digits for training and 359 for testing.

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
