import gzip

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


def test_missing_folder(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        cifar10.load(tmp_path / "nowhere")


def test_empty_folder(tmp_path):
    with pytest.raises(InputError, match="cifar10-train.*It is empty"):
        cifar10.load(tmp_path)


def test_folder_with_other_files(tmp_path):
    (tmp_path / "cats.zip").write_bytes(b"")
    with pytest.raises(InputError, match="It holds: cats.zip"):
        cifar10.load(tmp_path)


@pytest.mark.parametrize("kept", [20, 0.5, 0.9, -4, -1])
def test_truncated_file(folder, kept):
    """TensorFlow itself takes some cuts for the end of the file."""
    file = folder / "cifar10-train-00001.tfrecord.gz"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else kept])
    with pytest.raises(InputError, match="00001.tfrecord.gz is truncated"):
        cifar10.load(folder)


def test_stream_that_ends_inside_a_record(folder):
    file = folder / "cifar10-train-00000.tfrecord.gz"
    content = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(content[:-7]))
    with pytest.raises(InputError, match="00000.tfrecord.gz is damaged"):
        cifar10.load(folder)


def test_uncompressed_file(folder):
    file = folder / "cifar10-train-00000.tfrecord.gz"
    file.write_bytes(gzip.decompress(file.read_bytes()))
    with pytest.raises(InputError, match="00000.tfrecord.gz is truncated or damaged"):
        cifar10.load(folder)


def test_file_without_records(folder):
    write_shard(folder / "cifar10-train-00002.tfrecord.gz", [])
    with pytest.raises(InputError, match="00002.tfrecord.gz holds no records"):
        cifar10.load(folder)


def test_label_out_of_range(folder):
    write_shard(folder / "cifar10-train-00001.tfrecord.gz", [3, 10])
    words = r"0 ... 9. Received: 10\..*00001.tfrecord.gz 1"
    with pytest.raises(InputError, match=words):
        cifar10.load(folder)


def test_images_of_another_size(folder):
    write_shard(folder / "cifar10-train-00001.tfrecord.gz", [3], size=16)
    with pytest.raises(InputError, match=r"\(32, 32, 3\).*16 16 3.*00001.*gz 0"):
        cifar10.load(folder)


def test_records_of_another_kind(folder):
    with tf.io.TFRecordWriter(
        str(folder / "cifar10-train-00001.tfrecord.gz"), "GZIP"
    ) as writer:
        writer.write(b"not an example")
    with pytest.raises(
        InputError, match="not an example of `image.*`label`.*00001.tfrecord.gz 0"
    ):
        cifar10.load(folder)


def test_tensorflow_datasets():
    with tfds.testing.mock_data(num_examples=12):
        training, test = cifar10.load()
    assert training.images.shape == test.images.shape == (12, 32, 32, 3)
    assert training.images.dtype == np.uint8
    assert training.labels.dtype == np.int32
