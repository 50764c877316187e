"""ImageNet is read from TensorFlow Datasets; missing and corrupt files are named."""

import pytest
import tensorflow_datasets as tfds

from training.data import images as datasets
from training.data.images import imagenet
from training.errors import InputError
from training.experiments.classification.schema import DataConfig


@pytest.fixture
def prepared(write_tfds, shard_examples):
    """Writes two training shards and a validation shard as TFDS does."""

    def prepare(name, splits=("train", "validation")):
        shards = {"train": [shard_examples(0), shard_examples(5)]}
        shards["validation"] = [shard_examples(0)]
        return write_tfds(
            imagenet.SOURCES[name].tfds_name,
            {split: shards[split] for split in splits},
            ("image", "label"),
            file_name=b"n01440764_1",
        )

    return prepare


def labels(split):
    batches = datasets.evaluation_batches(split, 4)
    return [label for _, labels in batches for label in labels.numpy().tolist()]


def test_tensorflow_datasets(prepared):
    prepared("imagenet2012")
    assert datasets.load(DataConfig(name="imagenet2012")).image_shape == (224, 224, 3)
    config = DataConfig(name="imagenet2012", validation_examples=3, image_size=16)
    data = datasets.load(config)
    assert data.num_classes == 1000
    assert data.mean == pytest.approx((123.675, 116.28, 103.53))
    assert labels(data.training) == [0, 1, 2, 3, 4, 5, 6]
    assert labels(data.validation) == [7, 8, 9]
    assert labels(data.test) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("imagenet2012", AssertionError("no such file"), "Register.*ILSVRC2012_img_tr"),
        ("imagenette", OSError("unreachable"), "Check the connection.*unreachable"),
    ],
)
def test_unprepared_dataset_raises(prepared, monkeypatch, name, error, words):
    def fail(builder, file_format):
        raise error

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(InputError, match=words):
        datasets.load(DataConfig(name=name))


def test_missing_split_raises(prepared):
    prepared("imagenet2012", splits=["train"])
    with pytest.raises(InputError, match="Missing in .*: validation.*img_val.tar"):
        datasets.load(DataConfig(name="imagenet2012"))


@pytest.mark.parametrize("content", ["", '{"splits": 3}'])
def test_corrupt_description_raises(prepared, content):
    file = prepared("imagenette") / "dataset_info.json"
    file.write_text(content)
    with pytest.raises(InputError, match="could not prepare imagenette"):
        datasets.load(DataConfig(name="imagenette"))


def test_missing_shard_raises(prepared):
    file = next(prepared("imagenette").glob("*-train*00001*"))
    file.unlink()
    with pytest.raises(InputError, match=f"imagenette.*{file} does not exist"):
        datasets.load(DataConfig(name="imagenette"))


def test_other_format_raises(prepared, monkeypatch):
    prepared("imagenette")
    other = property(lambda info: tfds.core.FileFormat.ARRAY_RECORD)
    monkeypatch.setattr(tfds.core.DatasetInfo, "file_format", other)
    with pytest.raises(InputError, match="--file_format=tfrecord.*array_record"):
        datasets.load(DataConfig(name="imagenette"))
