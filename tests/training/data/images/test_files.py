"""A folder of images, and image classification datasets of TFDS."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

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
def test_random_split_equals_keras(tmp_path, subset):
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


@pytest.mark.parametrize("name", ["validation", "Val"])
def test_subfolders_of_splits(tmp_path, name):
    for split, count in {"train": 4, name: 2, "test": 1}.items():
        write_classes(tmp_path / split, count)
    data = load(tmp_path)
    sizes = [len(split) for split in (data.training, data.validation, data.test)]
    assert sizes == [12, 6, 3]
    assert f"{tmp_path}/{name}/" in data.validation.paths[0]


def test_folder_without_test_images(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "validation", 2, classes=CLASSES[::2])
    data = load(tmp_path)
    assert data.validation is data.test and data.num_classes == 3
    assert sorted(data.test.labels) == [0, 0, 2, 2]
    held_out = load(tmp_path, validation_examples=2)
    assert (len(held_out.training), len(held_out.validation)) == (10, 2)


def test_class_may_have_the_name_of_a_split(tmp_path):
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


@pytest.mark.parametrize("color_mode", ["rgb", "grayscale"])
def test_training_images_determine_the_normalization(tmp_path, color_mode):
    write_classes(tmp_path)
    data = load(tmp_path, color_mode=color_mode)
    pixels, _ = read(data.training)
    np.testing.assert_allclose(data.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(
        data.standard_deviation, pixels.std(axis=(0, 1, 2)), rtol=1e-5
    )
    count = len(data.mean)
    given = {"mean": [0.1307] * count, "standard_deviation": [0.3081] * count}
    data = load(tmp_path, color_mode=color_mode, **given)
    np.testing.assert_allclose(data.mean, 33.3285)
    np.testing.assert_allclose(data.standard_deviation, 78.5655)


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": [0.5] * 3},
        {"standard_deviation": [0.5] * 3},
        {"mean": [0.5], "standard_deviation": [0.5]},
        {"mean": [33.3] * 3, "standard_deviation": [78.6] * 3},
        {"name": "digits", "mean": [0.5] * 3, "standard_deviation": [0.5] * 3},
    ],
)
def test_bad_normalization_raises(tmp_path, changes):
    config = {"name": "folder", "directory": str(write_classes(tmp_path, 2))}
    if "name" in changes:
        config = {}
    with pytest.raises((InputError, ValueError), match="mean"):
        datasets.load(DataConfig(**{**config, **changes}))


def test_images_of_one_value_raise(tmp_path):
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (4, 4), "gray").save(tmp_path / name / f"{number}.png")
    with pytest.raises(InputError, match="data.mean.*Received.*128"):
        load(tmp_path)


def encoded(image, form, **keywords):
    stream = io.BytesIO()
    image.save(stream, form, **keywords)
    return stream.getvalue()


def test_sixteen_bits_are_scaled():
    values = np.array([[0, 257, 65535]], "uint16")
    content = encoded(Image.fromarray(values), "PNG")
    pixels = image_files.decode(tf.constant(content), 1).numpy()
    assert pixels[..., 0].tolist() == [[0, 1, 255]]


def test_animated_webp_raises(tmp_path):
    """TensorFlow's decoder of such files corrupts the memory of the process."""
    split = load(write_classes(tmp_path)).training
    frames = [Image.new("RGB", (4, 4), color) for color in ("black", "red")]
    content = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    (tmp_path / split.paths[0]).write_bytes(content)
    with pytest.raises(InputError, match="must be a BMP, GIF"), corruption.locating():
        list(datasets.evaluation_batches(split, 4))


def test_hidden_files_are_ignored(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "bee" / "._0.png").write_bytes(b"no image")
    data = load(tmp_path)
    assert len(data.training) + len(data.test) == 12


def test_central_square_is_resized(tmp_path):
    write_classes(tmp_path, 2)
    data = load(tmp_path)
    images, _ = read(data.training)
    expected = [opened(path)[:, 2:12] for path in data.training.paths]
    np.testing.assert_array_equal(images, expected)
    assert load(tmp_path, image_size=None).image_shape == (224, 224, 3)


def test_training_depends_on_seed_and_epoch(tmp_path):
    split = load(write_classes(tmp_path)).training
    augmentation = AugmentationConfig(resized_crop=True, horizontal_flip=True)

    def stream(steps):
        batches = datasets.training_batches(split, 4, augmentation, 7, steps)
        return [images.numpy() for images, _ in batches]

    whole, resumed = stream(range(6)), stream(range(3, 6))
    assert [len(batch) for batch in whole] == 2 * [4, 4, 2]
    np.testing.assert_equal(resumed, whole[3:])
    assert len({image.tobytes() for batch in whole for image in batch}) == 20


def _files(*splits):
    return [f"{split}/{name}/x.png" for split in splits for name in ("ant", "bee")]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["x.png"], "Received: no subfolders"),
        (["ant/x.png"], "Received: ant"),
        (["ant/x.png", "bee/notes.txt"], "bee must have images"),
        (["ant/x.png", "bee/x.WebP"], "x.WebP must be a BMP, GIF"),
        (["ant/x.png", "bee/x.png"], "validation_split=0.2 of 2 images"),
        ([*_files("train", "val"), "val/dog/x.png"], "Received: dog"),
        ([*_files("train", "val"), "test"], "Received: test"),
        (_files("train", "val", "valid"), "Received: train, val, valid"),
        (_files("train", "test", "unlabeled"), "no other folders"),
        (_files("val", "test"), "the folder train"),
        (["ant/x.png", "bee/x.png", *_files("test")], "folder of another class"),
    ],
)
def test_bad_folder_raises(tmp_path, files, words):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(InputError, match=words):
        load(tmp_path)


def test_unreadable_folder_raises(tmp_path, monkeypatch):
    write_classes(tmp_path)

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "nowhere")
    monkeypatch.setattr("os.scandir", denied)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "must be a BMP, GIF"),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_corrupt_file_is_named(tmp_path, spoil, words):
    split = load(write_classes(tmp_path)).training
    path = tmp_path / split.paths[3]
    spoil(path)
    with pytest.raises(InputError, match=f"{path} {words}"), corruption.locating():
        list(datasets.evaluation_batches(split, 4))


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
        ({"train": 6, "test": 3}, [6, 3, 3]),
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


def test_tfds_without_train_or_labels_raises(tfds_folder):
    with pytest.raises(InputError, match="must have the split train. Received: test"):
        load_tfds(tfds_folder({"test": 3}, features()))
    other = tfds_folder({"train": 3}, features("picture"))
    with pytest.raises(InputError, match="one image and one class.*picture"):
        load_tfds(other)


def test_unknown_name_of_tfds_raises(tmp_path):
    with pytest.raises(InputError, match="has no dataset no_such.*tensorflow.org"):
        load_tfds(tmp_path, dataset="no_such_dataset")


def test_images_of_the_right_size_are_decoded_once(tmp_path):
    files = load(write_classes(tmp_path))
    decoded = datasets.decode_once(files)
    assert decoded.validation is decoded.test
    for name in ("training", "test"):
        images, labels = read(getattr(files, name))
        np.testing.assert_array_equal(getattr(decoded, name).images, images)
        np.testing.assert_array_equal(getattr(decoded, name).labels, labels)
    resized = load(tmp_path, image_size=8)
    assert datasets.decode_once(resized) == resized


def test_corrupt_held_out_file_is_named(tmp_path):
    for split in ("train", "validation"):
        write_classes(tmp_path / split)
        for path in (tmp_path / split).rglob("*.png"):
            write(path, size=(10, 10))
    path = tmp_path / "validation" / "bee" / "1.png"
    path.write_text("no image")
    with pytest.raises(InputError, match=str(path)):
        datasets.decode_once(load(tmp_path))
