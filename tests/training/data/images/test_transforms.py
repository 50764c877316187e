"""Random windows, crops and mirrors of images follow their distributions."""

import numpy as np
import pytest
import tensorflow as tf

from training.data import image_files
from training.data.images import transforms
from training.experiments.classification.schema import AugmentationConfig


def key(number):
    return tf.stack([tf.constant(3, tf.int64), tf.cast(number, tf.int64)])


def windows(shape, count=1000):
    dataset = tf.data.Dataset.range(count).map(
        lambda number: transforms.random_window(tf.constant(shape), key(number))
    )
    return np.stack(list(dataset.as_numpy_iterator()))


def resized(image, height, width):
    return tf.image.resize(image, (height, width), antialias=True)


def test_distribution_of_windows():
    top, left, height, width = windows((300, 400)).T
    assert (top >= 0).all() and (top + height <= 300).all()
    assert (left >= 0).all() and (left + width <= 400).all()
    area, ratio = height * width / 120_000, width / height
    assert 0.079 < area.min() < 0.1 and 0.9 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.77 and 1.31 < ratio.max() < 1.35
    # Windows that always fit have a ratio as often below 1 as above.
    small = area < 0.5
    assert 0.44 < (ratio[small] < 1).mean() < 0.56
    quarters = np.quantile(area[small], [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quarters, [0.185, 0.29, 0.395], atol=0.03)
    place = (left / (400 - width))[small]
    assert abs(place.mean() - 0.5) < 0.05 and place.min() < 0.03 < 0.97 < place.max()


@pytest.mark.parametrize(
    ("shape", "central"),
    [
        ((10, 1000), (0, 493, 10, 13)),
        ((1000, 10), (493, 0, 13, 10)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_window_of_a_long_image_is_central(shape, central):
    np.testing.assert_array_equal(windows(shape, count=10), [central] * 10)


def test_window_is_decoded_as_part_of_the_image(encoded_image):
    encoded = encoded_image(61, 83, seed=0)
    whole = image_files.decode_jpeg(encoded).numpy()
    for top, left, height, width in windows((61, 83), count=5):
        part = image_files.decode_jpeg_window(
            encoded, [top, left, height, width]
        ).numpy()
        expected = whole[top : top + height, left : left + width]
        # Color is stored at half the resolution and interpolated inside the window.
        np.testing.assert_array_equal(part[:, 2:-2], expected[:, 2:-2])
        assert np.abs(part.astype(int) - expected).max() <= 12


def test_random_resized_crop_is_its_window_resized(encoded_image):
    encoded = encoded_image(61, 83, seed=0)
    for number in range(3):
        window = transforms.random_window(tf.constant([61, 83]), key(number))
        image = transforms.random_resized_crop(encoded, 32, key(number))
        assert image.shape == (32, 32, 3) and image.dtype == tf.float32
        pixels = image_files.decode_jpeg_window(encoded, window).numpy()
        np.testing.assert_allclose(image, resized(pixels, 32, 32), atol=1e-2)


@pytest.mark.parametrize(
    ("shape", "height", "width"),
    [((50, 75), 32, 48), ((101, 64), 50, 32), ((20, 30), 32, 48)],
)
def test_evaluation_uses_the_resized_center(encoded_image, shape, height, width):
    encoded = encoded_image(*shape, seed=1)
    image = transforms.resized_center_crop(encoded, 28)
    assert image.shape == (28, 28, 3) and image.dtype == tf.float32
    expected = resized(image_files.decode_jpeg(encoded).numpy(), height, width)
    top, left = round((height - 28) / 2), round((width - 28) / 2)
    expected = expected[top : top + 28, left : left + 28]
    np.testing.assert_allclose(image, expected, atol=1e-2)


def test_gray_images_get_three_channels():
    pixels = np.arange(40 * 30).reshape(40, 30, 1) % 256
    encoded = tf.io.encode_jpeg(pixels.astype("uint8"), format="grayscale")
    image = transforms.resized_center_crop(encoded, 16)
    assert image.shape == (16, 16, 3)
    np.testing.assert_array_equal(image[..., 0], image[..., 2])


def test_half_of_the_images_are_mirrored(encoded_image):
    transform = transforms.JPEGTransform(8)
    encoded = encoded_image(8, 8, seed=0)
    image, _ = transform.prepare(encoded, 0)
    config = AugmentationConfig(horizontal_flip=True)
    results = [transform.augment(encoded, 0, config, key(i))[0] for i in range(60)]
    mirrored = sum(np.array_equal(result, image[:, ::-1]) for result in results)
    plain = sum(np.array_equal(result, image) for result in results)
    assert mirrored + plain == 60
    assert 15 < mirrored < 45
