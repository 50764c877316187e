"""Losses and scores of pixels."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.experiments.mdeq_segmentation import job
from training.experiments.mdeq_segmentation.loss import (
    HardPixelCrossEntropy,
    PixelCrossEntropy,
)

PALETTE = ((0, 0, 0), (200, 100, 0), (0, 0, 255))

WEIGHTS = [0.5, 2.0, 1.25]


@pytest.fixture
def pixels():
    """Labels, some of them ignored, and logits of two images."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, (2, 4, 5))
    labels[:, 1:3, 2] = 255
    return labels, generator.normal(0, 3, (2, 4, 5, 3)).astype("float32")


def terms(labels, logits):
    """Labels, losses and probabilities of the pixels that are not ignored."""
    is_valid = labels != 255
    labels, logits = labels[is_valid], logits[is_valid].astype("float64")
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(probabilities, labels[:, None], axis=-1)[:, 0]
    return labels, -np.log(chosen), chosen


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_weighted_mean_over_valid_pixels(pixels, weights):
    labels, losses, _ = terms(*pixels)
    expected = np.average(losses, weights=weights and np.take(weights, labels))
    assert float(PixelCrossEntropy(weights)(*pixels)) == pytest.approx(expected, 1e-5)


@pytest.mark.parametrize(
    ("weights", "threshold", "keep"),
    [(None, 0.9, 0), (WEIGHTS, 0.3, 20), (WEIGHTS, 0.1, 5), (None, 0.5, 10**6)],
)
def test_hard_pixels(pixels, weights, threshold, keep):
    labels, losses, probabilities = terms(*pixels)
    limit = max(np.sort(probabilities)[min(keep, len(losses) - 1)], threshold)
    is_hard = probabilities < limit
    assert is_hard.any()
    factors = 1.0 if weights is None else np.take(weights, labels)
    expected = (factors * losses)[is_hard].mean()
    loss = HardPixelCrossEntropy(weights, threshold, keep)
    assert float(loss(*pixels)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [PixelCrossEntropy(WEIGHTS), HardPixelCrossEntropy()])
def test_images_without_a_class(pixels, loss):
    _, logits = pixels
    assert float(loss(np.full((2, 4, 5), 255), logits)) == 0.0


def test_nothing_is_hard(pixels):
    labels, _ = pixels
    logits = 50 * np.eye(3, dtype="float32")[np.where(labels == 255, 0, labels)]
    assert float(HardPixelCrossEntropy()(labels, logits)) == 0.0


@pytest.mark.parametrize(
    "loss", [PixelCrossEntropy(WEIGHTS), HardPixelCrossEntropy(WEIGHTS, 0.5, 7)]
)
def test_round_trip(pixels, loss):
    config = keras.losses.serialize(loss)
    again = keras.losses.deserialize(config)
    assert type(again) is type(loss)
    assert again.get_config() == loss.get_config()
    assert float(again(*pixels)) == float(loss(*pixels))


def test_half_precision_is_summed_in_float32(pixels):
    labels, logits = pixels
    loss = PixelCrossEntropy()(labels, keras.ops.cast(logits, "bfloat16"))
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"


def test_intersection_over_union():
    labels = np.array([0, 0, 0, 1, 1, 255, 255])
    predicted = np.array([0, 0, 1, 1, 2, 0, 3])
    confusion = job.confusion_matrix(labels, predicted, 4)
    np.testing.assert_array_equal(
        confusion, [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(job.class_iou(confusion), [2 / 3, 1 / 3, 0, np.nan])


def test_overlay(tmp_path):
    image = np.full((2, 3, 3), 100.0)
    labels = np.array([[0, 1, 2], [255, 1, 0]])
    path = tmp_path / "overlay.png"
    job.write_overlay(path, image, labels, PALETTE)
    expected = [
        [[50, 50, 50], [150, 100, 50], [50, 50, 178]],
        [[100, 100, 100], [150, 100, 50], [50, 50, 50]],
    ]
    decoded = tf.io.decode_png(path.read_bytes()).numpy()
    np.testing.assert_array_equal(decoded, expected)
    assert [file.name for file in tmp_path.iterdir()] == ["overlay.png"]
