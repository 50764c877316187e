"""The split of the digits is fixed, stratified and complete."""

import numpy as np

from training.data import images as datasets
from training.data.images import digits
from training.experiments.classification.schema import DataConfig


def test_split_is_fixed_stratified_and_complete():
    training, test = digits.load()
    assert training.images.shape == (1438, 8, 8, 1)
    assert test.images.shape == (359, 8, 8, 1)
    assert training.images.dtype == np.uint8
    assert training.images.max() == 16
    share = np.bincount(test.labels) / (
        np.bincount(test.labels) + np.bincount(training.labels)
    )
    np.testing.assert_allclose(share, 0.2, atol=0.003)
    images = np.concatenate([training.images, test.images]).reshape(1797, -1)
    assert images.sum(dtype=int) == 561718  # Like load_digits().


def test_held_out_images_are_the_last_of_training():
    data = datasets.load(DataConfig(train_examples=100, validation_examples=30))
    everything, test = digits.load()
    assert len(data.training) == 70
    np.testing.assert_array_equal(data.validation.images, everything.images[70:100])
    np.testing.assert_array_equal(data.test.labels, test.labels)
