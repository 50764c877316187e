import functools

import pytest
import tensorflow_datasets as tfds

from training.data import corruption
from training.data import images as datasets
from training.data.images import imagenet
from training.errors import InputError
from training.experiments.classification.schema import AugmentationConfig, DataConfig

VERSIONS = {"imagenet2012": "5.1.0", "imagenette": "320px-v2/1.0.0"}


@pytest.fixture
def prepared(tmp_path, monkeypatch, write_records, shard_examples):
    """Writes a dataset as TFDS does, and lets TFDS find it."""
    monkeypatch.setattr(
        tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path)
    )

    def prepare(name, splits=(("train", 2), ("validation", 1))):
        folder = tmp_path / name / VERSIONS[name]
        folder.mkdir(parents=True)
        builder = tfds.builder(imagenet.SOURCES[name].tfds_name)
        infos = []
        for split, num_shards in splits:
            template = tfds.core.ShardedFileTemplate(
                dataset_name=name,
                data_dir=folder,
                split=split,
                filetype_suffix="tfrecord",
            )
            for shard in range(num_shards):
                file = template.sharded_filepath(
                    shard_index=shard, num_shards=num_shards
                )
                examples = shard_examples(5 * shard)
                write_records(
                    file, examples, ("image", "label"), "", file_name=b"n01440764_1"
                )
            infos.append(
                tfds.core.SplitInfo(
                    name=split,
                    shard_lengths=[5] * num_shards,
                    num_bytes=0,
                    filename_template=template,
                )
            )
        tfds.folder_dataset.write_metadata(
            data_dir=folder, features=builder.info.features, split_infos=infos
        )
        return folder

    return prepare


def labels(split):
    batches = datasets.evaluation_batches(split, 4)
    return [label for _, labels in batches for label in labels.numpy().tolist()]


@pytest.mark.parametrize(
    ("name", "num_classes"),
    [("imagenet2012", 1000), pytest.param("imagenette", 10, marks=pytest.mark.slow)],
)
def test_tensorflow_datasets(prepared, name, num_classes):
    prepared(name)
    data = datasets.load(DataConfig(name=name, validation_examples=3))
    assert data.num_classes == num_classes
    assert data.image_shape == (224, 224, 3)
    assert data.mean == pytest.approx((123.675, 116.28, 103.53))
    assert labels(data.training) == [0, 1, 2, 3, 4, 5, 6]
    assert labels(data.validation) == [7, 8, 9]
    assert labels(data.test) == [0, 1, 2, 3, 4]
    batches = datasets.training_batches(
        data.training, 7, AugmentationConfig(resized_crop=True), 0, range(1)
    )
    ((images, received),) = batches
    assert images.shape == (7, 224, 224, 3)
    assert sorted(received.numpy()) == [0, 1, 2, 3, 4, 5, 6]


def test_folder_of_shards(folder):
    config = DataConfig(
        name="imagenette",
        directory=str(folder),
        image_size=16,
        train_examples=8,
        test_examples=2,
        validation_examples=1,
    )
    data = datasets.load(config)
    assert data.image_shape == (16, 16, 3)
    assert labels(data.training) == [0, 1, 2, 3, 4, 5, 6]
    assert labels(data.validation) == [7]
    assert labels(data.test) == [0, 1]


def test_without_held_out_images_the_test_images_validate(folder):
    data = datasets.load(DataConfig(name="imagenette", directory=str(folder)))
    assert data.validation is data.test and len(data.test) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_examples": 11}, "train_examples` must be at most 10"),
        ({"test_examples": 6}, "test_examples` must be at most 5"),
        ({"validation_examples": 10}, "less than 10.*validation_examples=10"),
        ({"name": "imagenet2012"}, "no file named imagenet2012-train"),
        ({"directory": "/nowhere"}, "/nowhere does not exist"),
        (
            {"augmentation": AugmentationConfig(crop_padding=2)},
            "`data.augmentation.resized_crop`.*crop_padding=2",
        ),
        (
            {"name": "digits", "directory": None, "image_size": 32},
            "digits are all of one size.*image_size=32",
        ),
        (
            {"name": "cifar10", "augmentation": AugmentationConfig(resized_crop=True)},
            "cifar10 are all of one size.*resized_crop=True",
        ),
    ],
)
def test_refuses_what_does_not_fit_the_data(folder, change, words):
    arguments = {"name": "imagenette", "directory": str(folder), **change}
    with pytest.raises(InputError, match=words):
        datasets.load(DataConfig(**arguments))


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("imagenet2012", AssertionError("no such file"), "Register.*ILSVRC2012_img_tr"),
        ("imagenette", OSError("unreachable"), "Check the connection.*unreachable"),
        ("imagenette", ImportError("no beam"), "`data.directory`.*no beam"),
    ],
)
def test_what_tfds_cannot_prepare(prepared, monkeypatch, name, error, words):
    def fail(builder, file_format):
        raise error

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(InputError, match=words):
        datasets.load(DataConfig(name=name))


def test_dataset_of_tfds_without_a_split(prepared):
    prepared("imagenet2012", splits=[("train", 1)])
    with pytest.raises(InputError, match="Missing in .*: validation.*img_val.tar"):
        datasets.load(DataConfig(name="imagenet2012"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"splits": 3}', "\xff", "-5", "x"])
def test_damaged_description_of_tfds(prepared, content):
    file = prepared("imagenette") / "dataset_info.json"
    if content in ("-5", "x"):
        content = file.read_text().replace('"5"', f'"{content}"')
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="could not prepare|json is damaged"):
        datasets.load(DataConfig(name="imagenette"))


def test_missing_shard_of_tfds(prepared):
    file = next(prepared("imagenette").glob("*-train*00001*"))
    file.unlink()
    with pytest.raises(InputError, match=f"imagenette.*{file} does not exist"):
        datasets.load(DataConfig(name="imagenette"))


@pytest.mark.parametrize(("number", "words"), [("4", "one too many"), ("6", "missing")])
def test_wrong_numbers_of_tfds(prepared, number, words):
    file = prepared("imagenette") / "dataset_info.json"
    file.write_text(file.read_text().replace('"5"', f'"{number}"'))
    data = datasets.load(DataConfig(name="imagenette", image_size=16))
    words = (
        f"{words}.*dataset_info.json: prepare the dataset again.*00000-of-0000. [45]"
    )
    with pytest.raises(InputError, match=words), corruption.reported():
        labels(data.test)


def test_dataset_of_tfds_in_another_format(prepared, monkeypatch):
    prepared("imagenette")
    other = property(lambda info: tfds.core.FileFormat.ARRAY_RECORD)
    monkeypatch.setattr(tfds.core.DatasetInfo, "file_format", other)
    with pytest.raises(InputError, match="--file_format=tfrecord.*array_record"):
        datasets.load(DataConfig(name="imagenette"))
