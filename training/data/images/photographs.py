"""Seven gray photographs, embedded. See `photographs.md` for their origin."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from ...errors import InputError
from ...files.input_file import check_file, check_folder
from ..image_files import decode
from .files import FORMATS

TEST = ("camera", "chelsea")

_FILE = Path(__file__).with_name("photographs.npz")


def load():
    """Returns two dicts from names to uint8 arrays `(height, width)`: photographs for
    training, and others for testing."""
    with np.load(_FILE) as file:
        images = dict(file)
    test = {name: images.pop(name) for name in TEST}
    return images, test


def from_folder(path):
    """Returns a dict from file names to uint8 arrays `(height, width)`, gray values.

    Args:
        path: Path of a folder with BMP, GIF, JPEG or PNG files, also in its subfolders.

    Raises:
        InputError: If the folder contains no image, or an image cannot be decoded.
    """
    check_folder(path, "folder of images")
    paths = sorted(p for p in Path(path).rglob("*") if p.suffix.lower() in FORMATS)
    if not paths:
        raise InputError(
            f"The folder {path} must contain images, files that end in "
            f"{', '.join(FORMATS)}. Received: none."
        )
    return {str(file.relative_to(path)): from_file(file) for file in paths}


def from_file(path):
    """Returns the gray values of an image file, a uint8 array `(height, width)`.

    Args:
        path: Path of a BMP, GIF, JPEG or PNG file.

    Raises:
        InputError: If the file cannot be decoded.
    """
    check_file(path, "image file")
    try:
        return decode(Path(path).read_bytes(), 1).numpy()[..., 0]
    except tf.errors.OpError as error:
        raise InputError(
            f"The file {path} must be a BMP, GIF, JPEG or PNG image. It is corrupt, "
            "truncated or of another format."
        ) from error


def crop_at_random(images, size, count, random):
    """Returns uint8 crops `(count, size, size, 1)` from random photographs.

    A crop is mirrored at random, so that each photograph occurs in eight orientations.

    Args:
        images: Dict of uint8 arrays `(height, width)`.
        size: Positive integer. Height and width of the crops.
        count: Positive integer. Number of crops.
        random: `numpy.random.Generator`.
    """
    check_sizes(images, size)
    images, crops = list(images.values()), np.empty((count, size, size, 1), "uint8")
    for crop in crops:
        image = images[random.integers(len(images))]
        top, left = (random.integers(side - size + 1) for side in image.shape)
        piece = image[top : top + size, left : left + size]
        piece = piece[:: random.choice((-1, 1)), :: random.choice((-1, 1))]
        crop[..., 0] = piece.T if random.integers(2) else piece
    return crops


def crop_all(images, size):
    """Returns uint8 crops `(crops, size, size, 1)`, the tiles of all photographs.

    Args:
        images: Dict of uint8 arrays `(height, width)`.
        size: Positive integer. Height and width of the crops.
    """
    check_sizes(images, size)
    return np.stack(
        [
            image[top : top + size, left : left + size, None]
            for image in images.values()
            for top in range(0, image.shape[0] - size + 1, size)
            for left in range(0, image.shape[1] - size + 1, size)
        ]
    )


def check_sizes(images, size):
    """Raises `InputError` if an image is smaller than a crop."""
    for name, image in images.items():
        if min(image.shape) < size:
            raise InputError(
                f"Images must have at least {size} x {size} pixels, the size of a "
                f"crop. Received: {name} of {image.shape[1]} x {image.shape[0]} "
                "pixels."
            )
