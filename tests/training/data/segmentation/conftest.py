"""Small images with labels, as TFDS keeps Cityscapes."""

import numpy as np
import pytest
import tensorflow as tf

IMAGE_SIZE = (8, 12)
NAMES = ("image_left", "segmentation_label")


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
def prepared(tmp_path_factory, write_dataset):
    """Training files of the images 0 ... 2 and 3 ... 4, a validation file of 5."""
    data_dir = tmp_path_factory.mktemp("tfds")
    examples = [tuple(map(png, pixels(seed))) for seed in range(6)]
    splits = {"train": [examples[:3], examples[3:5]], "validation": [examples[5:]]}
    name = "cityscapes/semantic_segmentation"
    write_dataset(data_dir, name, splits, NAMES, image_id=b"x")
    return data_dir
