"""Resumed crops equal uninterrupted ones; evaluation keeps all images."""

import numpy as np
import pytest

from training.data import segmentation
from training.experiments.mdeq_segmentation.schema import (
    SegmentationAugmentationConfig,
    SegmentationDataConfig,
)

AUGMENTATION = SegmentationAugmentationConfig(random_scale=True, horizontal_flip=True)


@pytest.fixture(scope="module", params=["memory", "streamed"])
def split(request, prepared):
    source = {"image_size": [8, 16], "train_examples": 5}
    if request.param == "streamed":
        source = {"name": "cityscapes", "directory": str(prepared)}
        source |= {"image_size": [8, 12]}
    return segmentation.load(SegmentationDataConfig(batch_size=2, **source)).training


def batches(split, steps, seed=0):
    config = (AUGMENTATION, (4, 8))
    stream = segmentation.training_batches(split, 2, config, seed, steps)
    return list(stream.as_numpy_iterator())


def test_resumed_stream_equals_uninterrupted_one(split):
    whole = batches(split, range(4))
    assert len(whole) == 2 * segmentation.steps_per_epoch(split, 2) == 4
    for images, labels in whole:
        assert (images.shape, images.dtype) == ((2, 4, 8, 3), np.float32)
        assert (labels.shape, labels.dtype) == ((2, 4, 8), np.int32)
    np.testing.assert_equal(batches(split, range(2, 4)), whole[2:])
    assert any(np.any(a[0] != b[0]) for a, b in zip(whole[:2], whole[2:], strict=True))
    assert np.any(whole[0][0] != batches(split, range(1), seed=1)[0][0])


def test_evaluation_keeps_all_images(split):
    images, labels = (
        np.concatenate(part)
        for part in zip(
            *segmentation.evaluation_batches(split, 2).as_numpy_iterator(), strict=True
        )
    )
    assert len(images) == len(labels) == len(split) == 5
    assert images.shape[1:3] == labels.shape[1:]
    examples = split.in_order().map(split.loader())
    for image, expected in zip(images, examples, strict=True):
        np.testing.assert_array_equal(image, expected[0])
