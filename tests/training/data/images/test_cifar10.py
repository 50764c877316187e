import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from training.data.images import cifar10
from training.errors import InputError


def example(image, label):
    encoded = tf.io.encode_jpeg(image, quality=100).numpy()
    features = {
        "image/encoded": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[encoded])
        ),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def write_shard(path, labels, size=32, seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), size, size, 3))
    # Blocks of 8 pixels survive JPEG compression nearly unchanged.
    images = images[:, ::8, ::8].repeat(8, 1).repeat(8, 2).astype("uint8")
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        for image, label in zip(images, labels, strict=True):
            writer.write(example(image, label).SerializeToString())
    return images


@pytest.fixture
def folder(tmp_path):
    write_shard(tmp_path / "cifar10-train-00000.tfrecord.gz", [0, 1, 2])
    write_shard(tmp_path / "cifar10-train-00001.tfrecord.gz", [3, 9])
    write_shard(tmp_path / "cifar10-test-00000.tfrecord.gz", [5] * 40)
    return tmp_path


def test_reads_all_shards_in_order(folder):
    training, test = cifar10.load(folder)
    assert training.images.shape == (5, 32, 32, 3)
    assert training.images.dtype == np.uint8
    assert training.labels.tolist() == [0, 1, 2, 3, 9]
    assert len(test) == 40


def test_decodes_with_the_accurate_transform(tmp_path):
    # Smooth colors are where the fast and the accurate transform differ.
    ramp = np.linspace(0, 255, 32)
    image = np.stack(np.broadcast_arrays(ramp[:, None], ramp, ramp[::-1]), -1)
    record = example(image.astype("uint8"), 0)
    for split in ("train", "test"):
        file = str(tmp_path / f"cifar10-{split}-00000.tfrecord.gz")
        with tf.io.TFRecordWriter(file, "GZIP") as writer:
            writer.write(record.SerializeToString())
    encoded = record.features.feature["image/encoded"].bytes_list.value[0]
    accurate, fast = (
        tf.io.decode_jpeg(encoded, dct_method=method).numpy()
        for method in ("INTEGER_ACCURATE", "INTEGER_FAST")
    )
    assert (accurate != fast).any()
    np.testing.assert_array_equal(cifar10.load(tmp_path)[0].images[0], accurate)


def test_folders_without_the_files(tmp_path):
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
