"""Splits of images that are streamed from disk, and classifiers of them."""

import numpy as np
import pytest
import tensorflow as tf
import yaml

from training.cli import main
from training.data import corruption
from training.data.images import (
    evaluation_batches,
    imagenet,
    in_memory,
    sample,
    training_batches,
)
from training.errors import InputError
from training.experiments.classification.schema import AugmentationConfig

PLAIN = AugmentationConfig()
RANDOM = AugmentationConfig(resized_crop=True, horizontal_flip=True)


@pytest.fixture
def split(folder):
    return imagenet.load("imagenette", folder, image_size=16)[0]


@pytest.fixture(params=["memory", "streamed"])
def either(request, split):
    """Ten images of the labels 0 ... 9, in memory or streamed."""
    if request.param == "streamed":
        return split
    pixels = np.arange(10, dtype="uint8").reshape(10, 1, 1, 1)
    return in_memory(pixels, np.arange(10, dtype="int32"))


def labels(split, seed, steps, batch_size=4):
    batches = training_batches(split, batch_size, PLAIN, seed, steps)
    return [labels.numpy().tolist() for _, labels in batches]


def in_order(split):
    return [labels.numpy().tolist() for _, labels in evaluation_batches(split, 4)]


def test_epochs_have_different_orders(either):
    both = labels(either, 0, range(9, 15))
    assert [len(batch) for batch in both] == [4, 4, 2, 4, 4, 2]
    first, second = (sum(epoch, []) for epoch in (both[:3], both[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second and first != list(range(10))
    tf.random.set_seed(5)
    assert both[3:] == labels(either, 0, range(12, 15))
    assert both != labels(either, 1, range(9, 15))


def test_order_of_shards_changes(split):
    split.shuffle_buffer = 1
    batches = labels(split, 0, range(6), batch_size=10)
    assert {tuple(batch) for batch in batches} == {
        (0, 5, 1, 6, 2, 7, 3, 8, 4, 9),
        (5, 0, 6, 1, 7, 2, 8, 3, 9, 4),
    }


def test_stream_starts_at_any_step(split):
    """Also after a pass of three batches, two if the last one is dropped."""
    pixels = np.random.default_rng(0).integers(1, 256, (10, 16, 16, 3))
    in_arrays = in_memory(pixels.astype("uint8"), np.arange(10, dtype="int32"))
    crops = AugmentationConfig(crop_padding=2, horizontal_flip=True)
    for images, augmentation, drop_remainder, first in (
        (split, RANDOM, False, 2),
        (in_arrays, crops, True, 3),
    ):
        arguments = images, 4, augmentation, 7
        whole = training_batches(*arguments, range(9), drop_remainder)
        whole = list(whole.as_numpy_iterator())
        part = training_batches(*arguments, range(first, 9), drop_remainder)
        np.testing.assert_equal(list(part.as_numpy_iterator()), whole[first:])


def test_augmentations_differ(write_dataset, tmp_path):
    ramp = np.broadcast_to(np.arange(0, 256, 4)[:, None], (64, 64, 1))
    examples = [[(tf.io.encode_jpeg(ramp.astype("uint8")).numpy(), 0)] * 6]
    splits = {"train": examples, "validation": examples}
    names = ("image", "label")
    write_dataset(tmp_path, "imagenette/320px-v2", splits, names, file_name=b"x")
    split, _ = imagenet.load("imagenette", tmp_path, image_size=8)
    batches = training_batches(split, 6, RANDOM, 0, range(2))
    images = np.concatenate([images for images, _ in batches])
    assert images.dtype == np.float32
    assert len({image.tobytes() for image in images}) == 12


def test_evaluation_keeps_the_order(either):
    assert in_order(either) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    part = either.part(2, 9).part(-4, None)
    assert len(part) == 4
    assert in_order(part) == [[5, 6, 7, 8]]
    assert sorted(labels(part, 0, range(1))[0]) == [5, 6, 7, 8]


def test_sample(split):
    images = sample(split, 3)
    assert images.shape == (3, 16, 16, 3) and split.image_shape == (16, 16, 3)
    whole = sample(split, 100)
    assert len(whole) == 10
    np.testing.assert_array_equal(images, whole[:3])


def test_corrupt_file_is_named(folder):
    (file,) = folder.rglob("*-train*00001-of*")
    split, _ = imagenet.load("imagenette", folder, image_size=16)
    content = file.read_bytes()
    for spoil, words in (
        (lambda: file.write_bytes(content[:-200]), f"{file} is corrupt at record 4"),
        (file.unlink, f"{file} does not exist"),
    ):
        spoil()
        with pytest.raises(InputError, match=words), corruption.locating():
            list(training_batches(split, 4, RANDOM, 0, range(3)))


@pytest.mark.slow
def test_run_and_its_export(tmp_path, small, folder, capsys):
    small["data"] = {
        "name": "imagenette",
        "directory": str(folder),
        "image_size": 8,
        "batch_size": 4,
        "augmentation": {"resized_crop": True, "horizontal_flip": True},
    }
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(small))
    run = str(tmp_path / "run")
    assert main(["train", str(config), "--work-dir", run]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["export", run, "--out", str(tmp_path / "saved")]) == 0
