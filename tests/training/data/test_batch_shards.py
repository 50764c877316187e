"""The batches of several readers together equal the batches of one reader."""

import numpy as np
import pytest
import tensorflow as tf

from tests.regimes import slow
from training.data import images
from training.data.pipeline import BatchShard
from training.experiments.classification.schema import AugmentationConfig

IN_MEMORY = AugmentationConfig(crop_padding=1, horizontal_flip=True)
STREAMED = AugmentationConfig(resized_crop=True, horizontal_flip=True)


@pytest.fixture
def stream(request, kind):
    """A split of ten images, and an augmentation of them."""
    if kind == "streamed":
        folder = request.getfixturevalue("folder")
        return images.imagenet.load("imagenette", folder, image_size=16)[0], STREAMED
    pixels = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 1)).astype("uint8")
    return images.in_memory(pixels, np.arange(10, dtype="int32")), IN_MEMORY


def joined(readers):
    """Returns the batches of the rows of all readers."""
    return [
        tuple(np.concatenate(rows) for rows in zip(*parts, strict=True))
        for parts in zip(*(reader.as_numpy_iterator() for reader in readers))
    ]


def check_equal(batches, whole):
    np.testing.assert_equal(batches, list(whole.as_numpy_iterator()))


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("in memory", 2),
        slow("in memory", 4),
        slow("streamed", 2),
    ],
)
def test_training(stream, count):
    split, augmentation = stream
    arguments = (split, 4, augmentation, 3, range(2, 6), True)
    readers = [
        images.training_batches(*arguments, BatchShard(index, count))
        for index in range(count)
    ]
    for reader in readers:
        assert [len(labels) for _, labels in reader] == 4 * [4 // count]
    check_equal(joined(readers), images.training_batches(*arguments))
    assert images.steps_per_epoch(split, 4, drop_remainder=True) == 2


@pytest.mark.parametrize(
    ("kind", "batch_size", "count", "last"),
    [
        ("in memory", 6, 3, [1, 1, 2]),
        slow("streamed", 6, 3, [1, 1, 2]),
    ],
)
def test_evaluation_reads_every_image_once(stream, batch_size, count, last):
    split, _ = stream
    readers = [
        images.evaluation_batches(split, batch_size, BatchShard(index, count))
        for index in range(count)
    ]
    assert [len(list(reader)[-1][1]) for reader in readers] == last
    check_equal(joined(readers), images.evaluation_batches(split, batch_size))


def test_static_sizes_stay_static():
    share, sizes = BatchShard(1, 2), []
    dataset = tf.data.Dataset.range(8).batch(4, drop_remainder=True)
    for shared in (dataset, tf.data.Dataset.range(6).batch(4)):
        shared = shared.map(lambda batch: share.rows(batch)[0])
        sizes.append(shared.element_spec.shape.as_list())
    assert sizes == [[2], [None]]
    assert [rows.tolist() for rows in shared.as_numpy_iterator()] == [[2, 3], [5]]
