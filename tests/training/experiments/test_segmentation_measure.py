import numpy as np
import pytest
import tensorflow as tf

from training.experiments.mdeq_segmentation.measure import (
    blend,
    class_iou,
    confusion_matrix,
    predict_in_windows,
    write_overlay,
)

PALETTE = ((0, 0, 0), (200, 100, 0), (0, 0, 255))


@pytest.fixture
def images():
    return np.random.default_rng(0).normal(size=(2, 6, 10, 3)).astype("float32")


def test_one_window_is_the_whole_image(images):
    calls = []

    def predict(window):
        calls.append(window.shape)
        return 2 * window

    logits = predict_in_windows(predict, images, (6, 10), (6, 10))
    np.testing.assert_array_equal(logits, 2 * images)
    assert calls == [images.shape]


@pytest.mark.parametrize("stride", [(4, 4), (2, 3), (1, 1), (3, 4)])
def test_windows_cover_the_image(images, stride):
    logits = predict_in_windows(lambda window: window, images, (4, 4), stride)
    np.testing.assert_allclose(logits, images, rtol=1e-6)


def test_overlaps_are_averaged(images):
    """Windows of columns 0 ... 3, 3 ... 6 and 6 ... 9, of the values 1, 2 and 3."""
    calls = []

    def predict(window):
        calls.append(window)
        return np.full((*window.shape[:3], 1), len(calls), "float32")

    logits = predict_in_windows(predict, images, (6, 4), (6, 3))
    row = [1, 1, 1, 1.5, 2, 2, 2.5, 3, 3, 3]
    np.testing.assert_array_equal(logits, np.broadcast_to(row, (2, 6, 10))[..., None])


def test_the_last_window_ends_with_the_image(images):
    """Columns 0 ... 5 and, since 4 ... 9 is the last that fits, those."""
    starts = []
    columns = np.broadcast_to(np.arange(10.0)[:, None], (2, 6, 10, 1))

    def predict(window):
        starts.append(int(window[0, 0, 0, 0]))
        return window

    predict_in_windows(predict, columns, (6, 6), (6, 5))
    assert starts == [0, 4]


def test_intersection_over_union():
    labels = np.array([0, 0, 0, 1, 1, 255, 255])
    predicted = np.array([0, 0, 1, 1, 2, 0, 3])
    confusion = confusion_matrix(labels, predicted, 4)
    np.testing.assert_array_equal(
        confusion, [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(class_iou(confusion), [2 / 3, 1 / 3, 0, np.nan])


def test_overlay(tmp_path):
    image = np.full((2, 3, 3), 100.0)
    labels = np.array([[0, 1, 2], [255, 1, 0]])
    path = tmp_path / "overlay.png"
    write_overlay(path, image, labels, PALETTE)
    expected = [
        [[50, 50, 50], [150, 100, 50], [50, 50, 178]],
        [[100, 100, 100], [150, 100, 50], [50, 50, 50]],
    ]
    decoded = tf.io.decode_png(path.read_bytes()).numpy()
    np.testing.assert_array_equal(decoded, expected)
    np.testing.assert_array_equal(blend(image, labels, PALETTE), expected)
    assert [file.name for file in tmp_path.iterdir()] == ["overlay.png"]
