import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from training.data.images import cifar10
from training.errors import InputError


def test_reads_all_shards_in_order(tmp_path, write_records, encoded_image):
    shards = {"train-00000": [0, 1, 2], "train-00001": [3, 9], "test-00000": [5] * 40}
    for name, labels in shards.items():
        examples = [(encoded_image(32, 32, seed=label), label) for label in labels]
        write_records(tmp_path / f"cifar10-{name}.tfrecord.gz", examples)
    training, test = cifar10.load(tmp_path)
    assert training.images.shape == (5, 32, 32, 3)
    assert training.images.dtype == np.uint8
    assert training.labels.tolist() == [0, 1, 2, 3, 9]
    assert len(test) == 40


def test_decodes_with_the_accurate_transform(tmp_path, write_records):
    # Smooth colors are where the fast and the accurate transform differ.
    ramp = np.linspace(0, 255, 32)
    image = np.stack(np.broadcast_arrays(ramp[:, None], ramp, ramp[::-1]), -1)
    encoded = tf.io.encode_jpeg(image.astype("uint8"), quality=100).numpy()
    for split in ("train", "test"):
        write_records(tmp_path / f"cifar10-{split}-00000.tfrecord.gz", [(encoded, 0)])
    accurate, fast = (
        tf.io.decode_jpeg(encoded, dct_method=method).numpy()
        for method in ("INTEGER_ACCURATE", "INTEGER_FAST")
    )
    assert (accurate != fast).any()
    np.testing.assert_array_equal(cifar10.load(tmp_path)[0].images[0], accurate)


def test_folder_without_shards_raises(tmp_path):
    with pytest.raises(InputError, match="cifar10-train.*It is empty"):
        cifar10.load(tmp_path)
    (tmp_path / "cats.zip").write_bytes(b"")
    with pytest.raises(InputError, match="It holds: cats.zip"):
        cifar10.load(tmp_path)


def test_tensorflow_datasets():
    with tfds.testing.mock_data(num_examples=12):
        training, test = cifar10.load()
    assert training.images.shape == test.images.shape == (12, 32, 32, 3)
    assert training.images.dtype == np.uint8
    assert training.labels.dtype == np.int32
