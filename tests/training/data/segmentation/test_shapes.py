"""Drawn shapes depend on their index; their edges are ignored."""

import numpy as np

from training.data import segmentation
from training.data.segmentation import shapes
from training.experiments.mdeq_segmentation.schema import SegmentationDataConfig


def test_example_depends_on_its_index():
    first = shapes.example("train", 3, (16, 32))
    np.testing.assert_equal(shapes.example("train", 3, (16, 32)), first)
    for split, index in (("train", 4), ("test", 3)):
        assert np.any(shapes.example(split, index, (16, 32))[0] != first[0])


def test_default_data():
    data = segmentation.load(SegmentationDataConfig())
    assert (len(data.training), len(data.test), len(data.validation)) == (256, 64, 64)
    assert data.training.images.shape == (256, 64, 128, 3)
    assert data.image_size == data.crop_size == (64, 128)
    labels = data.training.labels
    assert set(np.unique(labels)) == {0, 1, 2, 3, 255}
    shares = np.bincount(labels.ravel(), minlength=256)[[0, 1, 2, 3, 255]] / labels.size
    assert np.all(shares[1:4] > 0.05), "every class must be frequent enough to learn"
    assert 0.02 < shares[4] < 0.2
    pixels = data.training.images.astype("float32")
    assert abs(pixels.mean() - data.mean[0]) < 15
    assert abs(pixels.std() - data.standard_deviation[0]) < 15


def test_edges_are_ignored():
    _, labels = shapes.example("train", 0, (32, 64))
    known = np.where(labels == 255, -1, labels.astype(int))
    for one, other in ((known[1:], known[:-1]), (known[:, 1:], known[:, :-1])):
        differ = one != other
        assert np.all((one[differ] == -1) | (other[differ] == -1))
