"""Datasets of random JPEG images, as TFDS writes them."""

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds


def encoded_image(height, width, seed):
    """Returns a JPEG file of smooth random colors."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (3, 4, 3))
    image = tf.image.resize(coarse, (height, width), "bicubic")
    return tf.io.encode_jpeg(tf.saturate_cast(image, tf.uint8), quality=95).numpy()


def _feature(value):
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def write_records(path, records, names, **extra):
    """Writes records of features and of extra ones, or of bytes as they are."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            if not isinstance(record, bytes):
                features = dict(zip(names, record, strict=True)) | extra
                features = {name: _feature(value) for name, value in features.items()}
                features = tf.train.Features(feature=features)
                record = tf.train.Example(features=features).SerializeToString()
            writer.write(record)


def write_dataset(data_dir, dataset, splits, names, **extra):
    """Writes a dataset as TFDS does, and returns its folder.

    Args:
        data_dir: Folder in which TFDS keeps its datasets.
        dataset: Name of a dataset.
        splits: Dict from splits to the lists of examples of their files.
        names: Names of the features of an example.
        extra: Further features of all examples.
    """
    builder = tfds.builder(dataset, data_dir=data_dir)
    folder = Path(builder.data_dir)
    folder.mkdir(parents=True)
    infos = []
    for split, shards in splits.items():
        template = tfds.core.ShardedFileTemplate(
            dataset_name=builder.name,
            data_dir=folder,
            split=split,
            filetype_suffix="tfrecord",
        )
        for index, examples in enumerate(shards):
            file = template.sharded_filepath(shard_index=index, num_shards=len(shards))
            write_records(file, examples, names, **extra)
        info = tfds.core.SplitInfo(
            name=split,
            shard_lengths=list(map(len, shards)),
            num_bytes=0,
            filename_template=template,
        )
        infos.append(info)
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=builder.info.features,
        split_infos=infos,
        check_data=False,
    )
    return folder


@pytest.fixture(name="encoded_image", scope="session")
def encoded_image_fixture():
    return encoded_image


@pytest.fixture(name="write_dataset", scope="session")
def write_dataset_fixture():
    return write_dataset


@pytest.fixture
def write_tfds(tmp_path, monkeypatch):
    """Returns `write_dataset` for the folder in which TFDS then looks by default."""
    monkeypatch.setattr(
        tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path)
    )
    return functools.partial(write_dataset, tmp_path)


@pytest.fixture(scope="session")
def sizes():
    """`(height, width)` of the images of a shard, the largest of them first."""
    return [(50, 70), (33, 21), (24, 24), (20, 61), (41, 38)]


@pytest.fixture(scope="session")
def shard_examples(sizes):
    """Returns a function that draws one shard: image `k` has the label `first + k`."""

    def make(first):
        return [
            (encoded_image(*size, seed=first + k), first + k)
            for k, size in enumerate(sizes)
        ]

    return make


@pytest.fixture
def folder(tmp_path, shard_examples):
    """Training files of the labels 0 ... 4 and 5 ... 9, a test file as the first."""
    files = [shard_examples(0), shard_examples(5)]
    splits = {"train": files, "validation": files[:1]}
    name = "imagenette/320px-v2"
    write_dataset(tmp_path, name, splits, ("image", "label"), file_name=b"x")
    return tmp_path
