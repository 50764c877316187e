"""CIFAR-10 is read from its file and TensorFlow Datasets; bad arrays raise."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from training.data.images import cifar10
from training.errors import InputError


def write(folder, **changes):
    images = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), "uint8")
    labels = np.array([[0], [1], [2], [3], [9]])
    arrays = {"x_train": images[:5], "y_train": labels}
    arrays |= {"x_test": images[5:], "y_test": labels[:2], **changes}
    arrays = {key: value for key, value in arrays.items() if value is not None}
    np.savez(folder / "cifar10.npz", **arrays)
    return images


def test_reads_a_file(tmp_path):
    images = write(tmp_path)
    training, test = cifar10.load(tmp_path)
    np.testing.assert_array_equal(training.images, images[:5])
    np.testing.assert_array_equal(test.images, images[5:])
    assert training.labels.tolist() == [0, 1, 2, 3, 9]
    assert training.labels.dtype == np.int32


@pytest.mark.parametrize(
    "changes",
    [
        {"x_test": None},
        {"x_train": np.zeros((5, 32, 32, 3), "float32")},
        {"x_train": np.zeros((5, 3, 32, 32), "uint8")},
        {"y_train": np.arange(4)},
        {"y_train": np.arange(5) + 6},
    ],
)
def test_bad_arrays_raise(tmp_path, changes):
    write(tmp_path, **changes)
    with pytest.raises(InputError, match="cifar10.npz"):
        cifar10.load(tmp_path)


def test_bad_file_raises(tmp_path):
    with pytest.raises(InputError, match="cifar10.npz does not exist"):
        cifar10.load(tmp_path)
    (tmp_path / "cifar10.npz").write_bytes(b"words")
    with pytest.raises(InputError, match="cifar10.npz"):
        cifar10.load(tmp_path)


def test_tensorflow_datasets():
    with tfds.testing.mock_data(num_examples=12):
        training, test = cifar10.load()
    assert training.images.shape == test.images.shape == (12, 32, 32, 3)
    assert training.images.dtype == np.uint8
    assert training.labels.dtype == np.int32
