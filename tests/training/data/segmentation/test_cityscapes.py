"""Cityscapes is read with the ids of training; wrong labels and sizes raise."""

import numpy as np
import pytest

from training.data import corruption, segmentation
from training.data.segmentation import cityscapes
from training.errors import InputError
from training.experiments.mdeq_segmentation.schema import SegmentationDataConfig

SCORED = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]


def load(folder, **arguments):
    config = {
        "name": "cityscapes",
        "directory": None if folder is None else str(folder),
        "image_size": [8, 12],
        "batch_size": 2,
    }
    return segmentation.load(SegmentationDataConfig(**{**config, **arguments}))


def examples_of(split):
    """The images and labels of a split, in their order."""
    return list(split.in_order().map(split.loader()).as_numpy_iterator())


def test_label_ids():
    table = cityscapes.train_ids()
    np.testing.assert_array_equal(table[SCORED], np.arange(19))
    others = np.setdiff1d(np.arange(34), SCORED)
    assert set(table[others]) == {255} == {table[255]}
    assert set(table[34:255]) == {-1}
    names = cityscapes.CLASSES.names
    assert (names[0], names[13], names[18]) == ("road", "car", "bicycle")
    assert cityscapes.CLASSES.palette[13] == (0, 0, 142)


def test_folder(prepared, pixels):
    data = load(prepared)
    assert (len(data.training), len(data.test)) == (5, 1)
    for seed, (image, labels) in enumerate(examples_of(data.training)):
        expected_image, label_ids = pixels(seed)
        np.testing.assert_array_equal(image, expected_image)
        np.testing.assert_array_equal(labels, cityscapes.train_ids()[label_ids[..., 0]])
        assert labels.dtype == np.uint8


def test_wrong_labels_and_sizes_raise(tmp_path, png, pixels, write_dataset):
    image, label_ids = pixels(0)
    examples = [[(png(image), png(label_ids)), (png(image), png(label_ids + 34))]]
    splits = {"train": examples, "validation": examples}
    name = "cityscapes/semantic_segmentation"
    names = ("image_left", "segmentation_label")
    write_dataset(tmp_path, name, splits, names, image_id=b"x")
    split = load(tmp_path).training
    with pytest.raises(InputError, match="corrupt at record 1"), corruption.locating():
        list(segmentation.evaluation_batches(split, 1))
    split = load(tmp_path, image_size=[8, 10]).training
    with pytest.raises(InputError, match="corrupt at record 0"), corruption.locating():
        list(segmentation.evaluation_batches(split, 1))


def test_tfds_needs_a_manual_download(write_tfds):
    with pytest.raises(InputError, match="leftImg8bit"):
        load(None)
