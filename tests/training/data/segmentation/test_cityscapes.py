import shutil

import numpy as np
import pytest
import tensorflow as tf

from training.data import segmentation
from training.data.segmentation import cityscapes
from training.errors import InputError
from training.experiments.mdeq_segmentation.schema import SegmentationDataConfig

NAMES = ("image/encoded", "label/encoded")
SCORED = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]


def load(folder, **arguments):
    config = SegmentationDataConfig(
        name="cityscapes",
        directory=None if folder is None else str(folder),
        image_size=[8, 12],
        batch_size=2,
        **arguments,
    )
    return segmentation.load(config)


def images_of(split):
    return [image for image, _ in examples_of(split)]


def examples_of(split, entries=None):
    """The images and labels of entries; by default of all of them, in their order."""
    entries = split.in_order() if entries is None else entries
    return list(entries.map(split.loader()).as_numpy_iterator())


def test_label_ids():
    table = cityscapes.train_ids()
    np.testing.assert_array_equal(table[SCORED], np.arange(19))
    others = np.setdiff1d(np.arange(34), SCORED)
    assert set(table[others]) == {255} == {table[255]}
    assert set(table[34:255]) == {-1}
    names = cityscapes.CLASSES.names
    assert (names[0], names[13], names[18]) == ("road", "car", "bicycle")
    assert cityscapes.CLASSES.palette[13] == (0, 0, 142)


def test_folder(shards, pixels):
    data = load(shards)
    assert (len(data.training), len(data.test)) == (5, 1)
    for seed, (image, labels) in enumerate(examples_of(data.training)):
        expected_image, label_ids = pixels(seed)
        np.testing.assert_array_equal(image, expected_image)
        np.testing.assert_array_equal(labels, cityscapes.train_ids()[label_ids[..., 0]])
        assert labels.dtype == np.uint8


def test_images_may_be_jpeg(tmp_path, shards, png, pixels, write_records):
    image, label_ids = pixels(0)
    encoded = tf.io.encode_jpeg(image, quality=100).numpy()
    shutil.copytree(shards, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "cityscapes-validation-00000.tfrecord.gz"
    write_records(path, [(encoded, png(label_ids))], NAMES)
    (received,) = images_of(load(tmp_path).test)
    expected = tf.io.decode_jpeg(encoded, dct_method="INTEGER_ACCURATE")
    np.testing.assert_array_equal(received, expected)


def test_part_spans_shards(shards, pixels):
    part = load(shards, train_examples=4).training.part(2, None)
    assert len(part) == 2
    for image, seed in zip(images_of(part), (2, 3), strict=True):
        np.testing.assert_array_equal(image, pixels(seed)[0])


def test_order_depends_on_the_key(shards, pixels):
    split = load(shards).training

    def order(*key):
        stream = split.shuffled(tf.constant(key, tf.int64))
        return [int(image.sum()) for image, _ in examples_of(split, stream)]

    original = [int(pixels(seed)[0].sum()) for seed in range(5)]
    orders = [order(0, epoch) for epoch in range(2)]
    assert all(sorted(one) == sorted(original) for one in orders)
    assert orders[0] != orders[1]


def test_tfds_needs_a_manual_download(write_tfds):
    with pytest.raises(InputError, match="(?s)leftImg8bit.*data.directory"):
        load(None)


def test_shards_of_tfds(write_tfds, png, pixels):
    first, second, third = (tuple(map(png, pixels(seed))) for seed in range(3))
    write_tfds(
        "cityscapes/semantic_segmentation",
        {"train": [[first, second]], "validation": [[third]]},
        names=("image_left", "segmentation_label"),
    )
    data = load(None)
    assert (len(data.training), len(data.test)) == (2, 1)
    np.testing.assert_array_equal(images_of(data.test)[0], pixels(2)[0])
