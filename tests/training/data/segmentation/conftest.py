"""Shards of small images with labels, in the format of Cityscapes."""

import numpy as np
import pytest
import tensorflow as tf

IMAGE_SIZE = (8, 12)
NAMES = ("image/encoded", "label/encoded")


def png(pixels):
    """Returns the PNG file of a uint8 array."""
    return tf.io.encode_png(pixels).numpy()


def pixels(seed):
    """Returns an image and its label ids."""
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (*IMAGE_SIZE, 3), "uint8")
    return image, generator.integers(0, 34, (*IMAGE_SIZE, 1), "uint8")


@pytest.fixture(scope="session", name="png")
def png_fixture():
    return png


@pytest.fixture(scope="session", name="pixels")
def pixels_fixture():
    return pixels


@pytest.fixture(scope="session")
def shards(tmp_path_factory, write_records):
    """Training shards of the images 0 ... 2 and 3 ... 4, a validation shard of 5."""
    folder = tmp_path_factory.mktemp("cityscapes")
    for name, seeds in {
        "train-00000": (0, 1, 2),
        "train-00001": (3, 4),
        "validation-00000": (5,),
    }.items():
        examples = [tuple(map(png, pixels(seed))) for seed in seeds]
        write_records(folder / f"cityscapes-{name}.tfrecord.gz", examples, NAMES)
    return folder
