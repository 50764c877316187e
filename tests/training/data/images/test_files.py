"""A user's own folder of images, and any image classification dataset of TFDS."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import yaml
from PIL import Image

from training.cli import main
from training.data import corruption, image_files
from training.data import images as datasets
from training.data.images.files import FORMATS
from training.errors import InputError
from training.experiments.classification.schema import AugmentationConfig, DataConfig

CLASSES = ("ant", "bee", "cat")


def write(path, value=0, size=(10, 14), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 256, (*size, 3)).astype("uint8")
    Image.fromarray(pixels).convert(mode).save(path)
    return opened(path)


def opened(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def write_classes(folder, count=4, classes=CLASSES):
    for label, name in enumerate(classes):
        for number in range(count):
            write(folder / name / f"{number}.png", 100 * label + number)
    return folder


def load(directory, image_size=10, **keywords):
    config = {"name": "folder", "directory": str(directory), "image_size": image_size}
    return datasets.load(DataConfig(**{**config, **keywords}))


def read(split):
    batches = datasets.evaluation_batches(split, 64)
    return map(np.concatenate, zip(*batches.as_numpy_iterator(), strict=True))


@pytest.mark.parametrize("subset", ["training", "validation"])
def test_the_random_split_is_that_of_keras(tmp_path, subset):
    write_classes(tmp_path, 7)
    write(tmp_path / "bee" / "deeper" / "x.jpg", 1000)
    write(tmp_path / ".hidden" / "x.png")
    (tmp_path / "bee" / "notes.txt").write_text("no image")
    expected = keras.utils.image_dataset_from_directory(
        tmp_path, validation_split=0.3, subset=subset, seed=5, verbose=False
    )
    data = load(tmp_path, validation_split=0.3, split_seed=5)
    split = data.training if subset == "training" else data.test
    assert split.paths == expected.file_paths
    assert [CLASSES[label] for label in split.labels] == [
        path.removeprefix(f"{tmp_path}/").split("/")[0] for path in split.paths
    ]
    assert data.num_classes == 3 and data.validation is data.test


@pytest.mark.parametrize("name", ["validation", "val", "valid", "dev", "Val"])
def test_subfolders_of_splits(tmp_path, name):
    for split, count in {"train": 4, name: 2, "test": 1}.items():
        write_classes(tmp_path / split, count)
    data = load(tmp_path)
    sizes = [len(split) for split in (data.training, data.validation, data.test)]
    assert sizes == [12, 6, 3]
    assert f"{tmp_path}/{name}/" in data.validation.paths[0]


def test_two_subfolders_of_splits(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "validation", 1)
    data = load(tmp_path)
    assert data.validation is data.test and len(data.test) == 3
    held_out = load(tmp_path, validation_examples=2)
    assert (len(held_out.training), len(held_out.validation)) == (10, 2)


def test_a_split_for_evaluation_may_lack_classes(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "test", 2, classes=CLASSES[::2])
    data = load(tmp_path)
    assert sorted(data.test.labels) == [0, 0, 2, 2] and data.num_classes == 3


def test_classes_may_be_called_like_splits(tmp_path):
    write_classes(tmp_path, classes=("bus", "train"))
    assert load(tmp_path).num_classes == 2


FILES = {
    "color.bmp": "RGB",
    "gray.bmp": "L",
    "palette.gif": "P",
    "gray.gif": "L",
    "color.jpeg": "RGB",
    "gray.jpg": "L",
    "color.png": "RGB",
    "gray.png": "L",
    "alpha.png": "RGBA",
    "gray_alpha.png": "LA",
    "palette.PNG": "P",
    "bits.png": "1",
    "palette.bmp": "P",
    "bits.bmp": "1",
    "alpha.bmp": "RGBA",
    "cmyk.jpg": "CMYK",
}


@pytest.mark.parametrize("color_mode", ["rgb", "grayscale"])
def test_formats(tmp_path, color_mode):
    expected = {
        name: write(tmp_path / "a" / name, size=(10, 10), mode=mode)
        for name, mode in FILES.items()
    }
    assert all(name.lower().endswith(FORMATS) for name in FILES)
    write(tmp_path / "b" / "x.png", size=(10, 10))
    data = load(tmp_path, validation_split=0.1, color_mode=color_mode)
    found = {}
    for split in (data.training, data.test):
        images, _ = read(split)
        found |= dict(zip([path.split("/")[-1] for path in split.paths], images))
    if color_mode == "grayscale":
        assert len(data.mean) == len(data.standard_deviation) == 1
    for name, image in expected.items():
        if color_mode == "grayscale":
            image = np.asarray(Image.fromarray(image).convert("L"))[..., None]
        # Gray values of a JPEG file are stored; they are not computed from clipped
        # colors.
        tolerance = 20 if name.endswith(("jpg", "jpeg")) else 1
        np.testing.assert_allclose(found[name], image, atol=tolerance, err_msg=name)


def encoded(image, form, **keywords):
    stream = io.BytesIO()
    image.save(stream, form, **keywords)
    return stream.getvalue()


def test_a_transparent_gif_whose_first_frame_is_smaller(tmp_path):
    header = b"GIF89a" + bytes([3, 0, 2, 0, 0x80, 1, 0]) + b"\xc8\x00\x00\x00\x64\x00"
    control = b"\x21\xf9\x04\x01\x00\x00\x01\x00"  # Color 1 is transparent.
    # One pixel of color 0 at (1, 0), compressed: clear, 0, end, of three bits each.
    frame = b"\x2c" + bytes([1, 0, 0, 0, 1, 0, 1, 0, 0]) + b"\x02\x02\x44\x01\x00"
    content = header + control + frame + b"\x3b"
    (tmp_path / "x.gif").write_bytes(content)
    pixels = image_files.decode(tf.constant(content), 3).numpy()
    np.testing.assert_array_equal(pixels, opened(tmp_path / "x.gif"))
    assert pixels.shape == (2, 3, 3) and pixels[0, 1].tolist() == [200, 0, 0]


def test_sixteen_bits_are_scaled():
    values = np.array([[0, 257, 65535]], "uint16")
    content = encoded(Image.fromarray(values), "PNG")
    pixels = image_files.decode(tf.constant(content), 1).numpy()
    assert pixels[..., 0].tolist() == [[0, 1, 255]]


@pytest.mark.parametrize("is_animated", [False, True])
def test_webp_in_a_file_with_another_suffix_raises(tmp_path, is_animated):
    split = load(write_classes(tmp_path)).training
    image = Image.new("RGB", (4, 4))
    more = {"save_all": True, "append_images": [Image.new("RGB", (4, 4), "red")]}
    content = encoded(image, "WEBP", **(more if is_animated else {}))
    (tmp_path / split.paths[0]).write_bytes(content)
    with pytest.raises(InputError, match="must be a BMP, GIF"), corruption.reported():
        list(datasets.evaluation_batches(split, 4))


def test_hidden_files_are_ignored(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "bee" / "._0.png").write_bytes(b"no image")
    write(tmp_path / "bee" / ".cache" / "0.png")
    (tmp_path / "train.csv").write_text("no folder")
    data = load(tmp_path)
    assert len(data.training) + len(data.test) == 12


def test_the_largest_central_square_is_resized(tmp_path):
    write_classes(tmp_path, 2)
    data = load(tmp_path)
    images, _ = read(data.training)
    expected = [opened(path)[:, 2:12] for path in data.training.paths]
    np.testing.assert_array_equal(images, expected)
    assert load(tmp_path, image_size=None).image_shape == (224, 224, 3)


@pytest.mark.parametrize(
    "augmentation",
    [
        AugmentationConfig(resized_crop=True, horizontal_flip=True),
        AugmentationConfig(crop_padding=2, horizontal_flip=True),
    ],
)
def test_training_is_a_function_of_seed_and_epoch(tmp_path, augmentation):
    split = load(write_classes(tmp_path)).training

    def stream(epochs):
        batches = datasets.training_batches(split, 4, augmentation, 7, epochs)
        return [images.numpy() for images, _ in batches]

    whole, resumed = stream(range(2)), stream(range(1, 2))
    assert [len(batch) for batch in whole] == 2 * [4, 4, 2]
    for one, other in zip(whole[3:], resumed, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len({image.tobytes() for batch in whole for image in batch}) == 20


def _no_images(folder):
    for name in CLASSES:
        (folder / name).mkdir()


def _empty_class(folder):
    write_classes(folder)
    (folder / "dog").mkdir()


def _loose_images(folder):
    write(folder / "x.png")


def _unknown_class(folder):
    write_classes(folder / "train")
    write_classes(folder / "validation", classes=("ant", "dog"))


def _folders(*names):
    def write_all(folder):
        for name in names:
            write_classes(folder / name, 1)

    return write_all


def _file_of_split(folder):
    _folders("train", "val")(folder)
    (folder / "test").write_text("a list of files")


def _test_beside_classes(folder):
    write_classes(folder)
    write_classes(folder / "test", 1)


def _other_format(folder):
    write_classes(folder)
    (folder / "bee" / "x.WebP").write_bytes(b"")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_no_images, r"ant must have images \(.bmp.*Received: no such file"),
        (_empty_class, "dog must have images.*or remove the folder"),
        (_loose_images, "at least two classes.*one subfolder.*Received: no subfolders"),
        (lambda folder: write(folder / "a" / "x.png"), "two classes.*Received: a"),
        (_unknown_class, "classes of the training images.*Received: dog"),
        (_folders("train", "val", "validation"), "Received: train, val, validation"),
        (_folders("train", "val", "valid", "test"), "one folder of a split"),
        (_folders("train", "Train", "val"), "one folder of a split"),
        (_folders("train", "test", "testing"), "one folder of a split"),
        (_folders("train", "test", "unlabeled"), "no other folders"),
        (_folders("val", "test"), "the folder train"),
        (_file_of_split, "a folder for each split.*Received: test"),
        (_test_beside_classes, "test must not have the folder of another class"),
        (_other_format, "x.WebP must be a BMP, GIF.*Convert.*Received: 1 image"),
        (lambda folder: write_classes(folder, 1), "validation_split=0.2 of 3 images"),
    ],
)
def test_bad_folders_are_refused(tmp_path, make, words):
    make(tmp_path)
    with pytest.raises(InputError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"directory": None}, "needs the folder of images"),
        ({"directory": "/nowhere"}, "/nowhere does not exist"),
        ({"dataset": "beans"}, "`data.name: tfds`.*name=folder, dataset=beans"),
        ({"name": "tfds"}, "name=tfds, dataset=None"),
        (
            {"name": "digits", "directory": None, "color_mode": "grayscale"},
            "name=digit",
        ),
    ],
)
def test_settings_that_do_not_fit(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        datasets.load(DataConfig(**{"name": "folder", "directory": "x", **change}))


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    write_classes(tmp_path)

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", denied)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "must be a BMP, GIF"),
        (lambda path: path.write_bytes(b""), "must be a BMP, GIF"),
        (lambda path: path.write_text("text"), "must be a BMP, GIF"),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_a_corrupt_file_is_named(tmp_path, spoil, words):
    split = load(write_classes(tmp_path)).training
    path = tmp_path / split.paths[3]
    spoil(path)
    with pytest.raises(InputError, match=f"{path} {words}"), corruption.reported():
        list(datasets.evaluation_batches(split, 4))
    config = AugmentationConfig(resized_crop=True)
    with pytest.raises(InputError, match=f"{path} {words}"), corruption.reported():
        list(datasets.training_batches(split, 4, config, 0, range(1)))


@pytest.mark.slow
def test_a_run_on_a_folder_and_its_export(tmp_path, small, capsys):
    for split in ("train", "validation"):
        write_classes(tmp_path / "images" / split)
    small["data"] = {
        "name": "folder",
        "directory": str(tmp_path / "images"),
        "image_size": 8,
        "batch_size": 4,
        "augmentation": {"crop_padding": 1},
    }
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(small))
    run = str(tmp_path / "run")
    assert main(["train", str(config), "--work-dir", run]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["export", run, "--out", str(tmp_path / "saved")]) == 0


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """Returns a function that builds a TFDS dataset and returns its folder."""

    def build(splits, features, name="insects"):
        folder = tmp_path_factory.mktemp("tfds")
        keys = tuple(features)
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version="1.0.0",
            data_dir=folder,
            features=tfds.features.FeaturesDict(features),
            split_datasets={
                split: tf.data.Dataset.from_tensor_slices(
                    {
                        keys[0]: _pixels(count),
                        keys[1]: np.arange(count, dtype="int64") % 3,
                    }
                )
                for split, count in splits.items()
            },
            disable_shuffling=False,
        )
        return folder

    return build


def _pixels(count):
    values = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 3))
    return values.astype("uint8")


def features(image="image", label="label", encoding="png"):
    return {
        image: tfds.features.Image(shape=(8, 8, 3), encoding_format=encoding),
        label: tfds.features.ClassLabel(num_classes=3),
    }


def load_tfds(folder, dataset="insects", **keywords):
    arguments = {"name": "tfds", "dataset": dataset, "directory": str(folder)}
    return datasets.load(DataConfig(**arguments, image_size=8, **keywords))


@pytest.mark.parametrize(
    ("splits", "sizes"),
    [
        ({"train": 6, "validation": 4, "test": 3}, [6, 4, 3]),
        ({"train": 10}, [8, 2, 2]),
        pytest.param({"train": 6, "validation": 4}, [6, 4, 4], marks=pytest.mark.slow),
        pytest.param({"train": 6, "test": 3}, [6, 3, 3], marks=pytest.mark.slow),
    ],
)
def test_splits_of_tfds(tfds_folder, splits, sizes):
    data = load_tfds(tfds_folder(splits, features()))
    assert [len(split) for split in data[:3]] == sizes
    assert data.num_classes == 3
    images, labels = map(
        np.concatenate, zip(*map(read, (data.training, data.test)), strict=True)
    )
    written = np.concatenate([_pixels(count) for count in splits.values()])
    expected = {image.tobytes() for image in written}
    assert {image.astype("uint8").tobytes() for image in images} <= expected
    assert set(labels) == {0, 1, 2}


def test_tfds_without_train_or_labels(tfds_folder):
    with pytest.raises(InputError, match="must have the split train. Received: test"):
        load_tfds(tfds_folder({"test": 3}, features()))
    other = tfds_folder({"train": 3}, features("picture"))
    with pytest.raises(InputError, match="one image and one class.*picture"):
        load_tfds(other)


def test_tfds_does_not_know_the_name(tmp_path):
    with pytest.raises(InputError, match="has no dataset no_such.*tensorflow.org"):
        load_tfds(tmp_path, dataset="no_such_dataset")


def test_a_corrupt_image_of_tfds_is_named(tfds_folder):
    folder = tfds_folder({"train": 6, "test": 3}, features())
    (file,) = folder.rglob("*-test*tfrecord*")
    records = [bytearray(r.numpy()) for r in tf.data.TFRecordDataset(str(file))]
    start = records[1].find(b"\x89PNG")
    records[1][start + 20 : start + 60] = bytes(40)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records:
            writer.write(bytes(record))
    data = load_tfds(folder)
    with pytest.raises(InputError, match=f"{file} 1"), corruption.reported():
        list(datasets.evaluation_batches(data.test, 2))
