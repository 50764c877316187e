"""Crops and mirrors of a stream are windows of its images."""

import numpy as np
import pytest
import tensorflow as tf

from training.data.images.transforms import augment
from training.experiments.classification.schema import AugmentationConfig


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(1, 256, (1, 5, 6, 2)).astype("uint8")


def test_crops_are_windows_of_the_padded_image(image):
    images = tf.constant(image.repeat(300, 0))
    key = tf.constant([1, 2], tf.int64)
    crops = augment(images, AugmentationConfig(crop_padding=1), key).numpy()
    padded = np.pad(image[0], ((1, 1), (1, 1), (0, 0)))
    windows = [
        padded[row : row + 5, column : column + 6]
        for row in range(3)
        for column in range(3)
    ]
    counts = [int((crops == window).all((1, 2, 3)).sum()) for window in windows]
    assert sum(counts) == 300
    assert min(counts) > 10


def test_half_of_the_images_are_mirrored(image):
    images = tf.constant(image.repeat(400, 0))
    config = AugmentationConfig(horizontal_flip=True)
    result = augment(images, config, tf.constant([1, 2], tf.int64)).numpy()
    mirrored = (result == image[:, :, ::-1]).all((1, 2, 3)).sum()
    plain = (result == image).all((1, 2, 3)).sum()
    assert mirrored + plain == 400
    assert 150 < mirrored < 250
