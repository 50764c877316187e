"""Augmentation moves labels with their images, and draws all crops and scales."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from training.data.segmentation.transforms import augment
from training.experiments.mdeq_segmentation.schema import SegmentationAugmentationConfig

CROP = (12, 16)


@pytest.fixture(scope="module")
def pair():
    """An image whose gray level is a function of the label of the pixel."""
    labels = np.kron(np.arange(12).reshape(3, 4), np.ones((8, 8))).astype("uint8")
    return np.repeat(20 * labels[..., None] + 10, 3, axis=-1), labels


@functools.cache
def compiled(crop_size, **config):
    config = SegmentationAugmentationConfig(**config)
    return tf.function(
        lambda image, labels, key: augment(image, labels, config, crop_size, key)
    )


def apply(pair, seed, crop_size=CROP, **config):
    key = tf.constant([0, seed], tf.int64)
    image, labels = compiled(crop_size, **config)(*map(tf.constant, pair), key)
    return image.numpy(), labels.numpy()


@pytest.mark.parametrize("random_scale", [False, True])
def test_labels_move_with_the_image(pair, random_scale):
    is_padded = False
    for seed in range(10):
        image, labels = apply(
            pair, seed, random_scale=random_scale, horizontal_flip=True
        )
        assert image.shape == (*CROP, 3)
        assert labels.shape == CROP
        assert (image.dtype, labels.dtype) == (np.float32, np.uint8)
        is_ignored = labels == 255
        is_padded |= is_ignored.any()
        np.testing.assert_array_equal(image[is_ignored], 0)
        expected = 20.0 * labels + 10
        is_right = np.isclose(image[..., 0], expected) | is_ignored
        if random_scale:
            # Bilinear interpolation mixes the levels of neighbors at their border.
            assert is_right.mean() > 0.5
            similar = np.abs(image[..., 0] - expected) <= 50
            assert np.all(similar | is_ignored)
        else:
            assert is_right.all()
    assert not is_padded  # Half of 24 x 32 is as large as the crop.


def test_small_images_are_padded(pair):
    part = pair[0][:10, :9], pair[1][:10, :9]
    image, labels = apply(part, 0)
    np.testing.assert_array_equal(image[:10, :9], part[0])
    np.testing.assert_array_equal(labels[:10, :9], part[1])
    for values, padding in ((image, 0), (labels, 255)):
        assert np.all(values[10:] == padding)
        assert np.all(values[:, 9:] == padding)


def test_crops_have_all_positions(pair):
    rows = np.arange(24 * 32).reshape(24, 32)
    image = np.repeat(rows[..., None] // 4, 3, axis=-1).astype("uint8")
    corners = {
        int(apply((image, pair[1]), seed)[0][0, 0, 0]) // 8 for seed in range(200)
    }
    assert corners == set(range(13))


def test_half_of_the_images_are_mirrored(pair):
    part = pair[0][:12, :16], pair[1][:12, :16]
    mirrored = 0
    for seed in range(40):
        image, labels = apply(part, seed, horizontal_flip=True)
        is_mirrored = labels[0, 0] != part[1][0, 0]
        mirrored += is_mirrored
        step = -1 if is_mirrored else 1
        np.testing.assert_array_equal(image, part[0][:, ::step])
        np.testing.assert_array_equal(labels, part[1][:, ::step])
    assert 10 < mirrored < 30


def test_scales():
    """The size of a white square shows the scale."""
    image, labels = np.zeros((40, 40, 3), "uint8"), np.zeros((40, 40), "uint8")
    labels[:20, :20] = 1
    scales = set()
    for seed in range(200):
        _, scaled = apply((image, labels), seed, (84, 84), random_scale=True)
        side = np.sqrt((scaled == 1).sum())
        scales.add(round(side / 2) / 10)
        known = (scaled != 255).sum()
        assert np.sqrt(known) == pytest.approx(min(2 * side, 84), abs=1)
    assert scales == {round(0.5 + step / 10, 1) for step in range(17)}
