"""Corrupt data raise an error that names file and record, in every reader."""

import gc
import gzip
import json
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.regimes import slow
from training.data import corruption
from training.data.images import (
    cifar10,
    evaluation_batches,
    imagenet,
    sample,
    training_batches,
)
from training.data.segmentation import cityscapes
from training.errors import InputError
from training.experiments.classification.schema import AugmentationConfig

SIZE = 32


@pytest.fixture(scope="module", autouse=True)
def frozen_leftovers():
    """Keeps the iterators that failed: each waits for its threads when it is freed."""
    yield
    gc.freeze()


def jpeg(seed=0, size=SIZE):
    coarse = np.random.default_rng(seed).uniform(0, 255, (3, 4, 3))
    pixels = tf.saturate_cast(tf.image.resize(coarse, (size, size)), tf.uint8)
    return tf.io.encode_jpeg(pixels, quality=95).numpy()


def png(channels=3, depth="uint8", size=SIZE):
    return tf.io.encode_png(np.full((size, size, channels), 7, depth)).numpy()


def resized_jpeg(height, width):
    """Returns a JPEG file whose header has another size."""
    encoded = bytearray(jpeg())
    place = encoded.find(b"\xff\xc0") + 5
    encoded[place : place + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(encoded)


def resized_png(height, width):
    encoded = bytearray(png())
    encoded[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    encoded[29:33] = zlib.crc32(encoded[12:29]).to_bytes(4, "big")
    return bytes(encoded)


GARBAGE = np.random.default_rng(0).bytes(700)
DAMAGED_IMAGES = {
    "truncated": jpeg()[:-200],
    "nothing": b"",
    "garbage between markers": b"\xff\xd8\xff" + GARBAGE + b"\xff\xd9",
    "no image in it": jpeg()[:20] + b"\xff\xd9",
    "truncated, with an end": jpeg()[:300] + b"\xff\xd9",
    "no height": resized_jpeg(0, SIZE),
    "65500 pixels": resized_jpeg(65500, 65500),
}


class Cifar:
    """Read into memory when it is loaded."""

    pattern, names = "cifar10-{}-00000.tfrecord.gz", ("image/encoded", "label")
    good = (jpeg(), 3)

    @staticmethod
    def read(folder):
        cifar10.load(folder)


class Imagenette:
    """Streamed."""

    pattern, names = "imagenette-{}-00000.tfrecord.gz", ("image/encoded", "label")
    good = (jpeg(size=48), 3)

    @staticmethod
    def read(folder):
        training, _ = imagenet.load("imagenette", folder, 16)
        with corruption.reported():
            list(evaluation_batches(training, 2))


class Cityscapes:
    """Streamed, with labels that are images too."""

    pattern = "cityscapes-{}-00000.tfrecord.gz"
    names = ("image/encoded", "label/encoded")
    good = (jpeg(), png(channels=1))

    @staticmethod
    def read(folder):
        training, _ = cityscapes.load(folder, (SIZE, SIZE))
        with corruption.reported():
            list(training.in_order().map(training.loader()))


@pytest.fixture
def files(tmp_path, write_records):
    """Writes whole shards of a kind, and returns the path of the training images."""

    def write_all(kind, training=None):
        for split in ("train", "test", "validation"):
            path = tmp_path / kind.pattern.format(split)
            write_records(path, [kind.good] * 3, kind.names)
        path = tmp_path / kind.pattern.format("train")
        if training is not None:
            write_records(path, training, kind.names)
        return path

    return write_all


def refused(kind, path, *words):
    """Reads a folder; its error must name the file, and no internals of TensorFlow."""
    with pytest.raises(InputError) as error:
        kind.read(path.parent)
    message = str(error.value)
    for word in (str(path), *words):
        assert word in message, message
    for internal in ("function_node", "{{", "[[", "[Op:", "end of place", "Iterator"):
        assert internal not in message, message


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Cifar, Imagenette, Cityscapes])
def test_intact_files_are_read(kind, files):
    kind.read(files(kind).parent)


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        (Cifar, "truncated"),
        *(slow(kind, "truncated") for kind in (Imagenette, Cityscapes)),
        *(slow(Imagenette, image) for image in list(DAMAGED_IMAGES)[1:]),
        slow(Cifar, "65500 pixels"),
    ],
)
def test_damaged_image(kind, image, files):
    damaged = (DAMAGED_IMAGES[image], kind.good[1])
    path = files(kind, [kind.good, damaged, kind.good])
    refused(kind, path, f"{path} 1")


def test_damaged_image_in_training(files):
    image = DAMAGED_IMAGES["garbage between markers"]
    path = files(Imagenette, [(image, 3), Imagenette.good])
    training, _ = imagenet.load("imagenette", path.parent, 16)
    with pytest.raises(InputError, match=f"{path} 0"):
        sample(training, 1)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile(loss="mse", run_eagerly=True)
    with pytest.raises(InputError, match=f"{path} 0"), corruption.reported():
        batches = training_batches(training, 2, AugmentationConfig(), 0, range(2))
        model.fit(batches, verbose=0, shuffle=False)


@pytest.mark.parametrize("kind", [Cifar, slow(Imagenette), slow(Cityscapes)])
def test_record_that_is_no_example(kind, files):
    path = files(kind, [kind.good, b"no example"])
    refused(kind, path, f"{path} 1")


def test_example_without_a_feature(files, write_records):
    path = files(Cifar)
    write_records(path, [Cifar.good[:1]], Cifar.names[:1])
    refused(Cifar, path, f"{path} 0", Cifar.names[1])


def test_feature_of_another_type(files):
    path = files(Cifar, [Cifar.good, (7, Cifar.good[1])])
    refused(Cifar, path, f"{path} 1")


@pytest.mark.parametrize(
    ("kind", "label"), [(Cifar, 10), slow(Cifar, 2**62), slow(Imagenette, -1)]
)
def test_label_out_of_range(kind, label, files):
    path = files(kind, [kind.good, (kind.good[0], label)])
    refused(kind, path, "0 ... 9", str(label))


DAMAGED_LABELS = [
    (png(channels=3), "must have 1 channels"),
    (png(channels=1, size=8), "must have 1 channels of size (32, 32)"),
    (png(channels=1, depth="uint16"), "must be a PNG file of 8 bits"),
    (tf.io.encode_jpeg(np.full((SIZE, SIZE, 1), 7, "uint8")).numpy(), "PNG file"),
    (png(channels=1)[:40], "damaged"),
    (resized_png(100000, 100000), "damaged"),
    (b"", "damaged"),
]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (tf.io.encode_png(np.full((SIZE, SIZE, 1), 34, "uint8")).numpy(), "label ids"),
        *(slow(*case) for case in DAMAGED_LABELS),
    ],
)
def test_labels_of_pixels(labels, words, files):
    path = files(Cityscapes, [Cityscapes.good, (Cityscapes.good[0], labels)])
    refused(Cityscapes, path, words, f"{path} 1")


def test_images_of_another_size(files):
    path = files(Cifar, [Cifar.good, (jpeg(size=40), Cifar.good[1])])
    refused(Cifar, path, "(32, 32", "40")


def _as_folder(path):
    path.unlink()
    path.mkdir()


def _as_raw_records(path):
    path.write_bytes(gzip.decompress(path.read_bytes()))


def _as_other_records(path):
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:20] + b"\0" + content[21:]))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_as_folder, "is a folder"),
        (lambda path: path.write_bytes(b""), "no records"),
        (_as_raw_records, "damaged"),
        (_as_other_records, "damaged"),
        (lambda path: path.write_bytes(gzip.compress(b"words")), "damaged"),
    ],
)
def test_damaged_file(spoil, words, files):
    path = files(Cifar)
    spoil(path)
    refused(Cifar, path, words)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_wrong_number_in_the_cache(number, files):
    path = files(Imagenette)
    Imagenette.read(path.parent)
    cache = path.with_name("imagenette-train-record-counts.json")
    (state,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({state: number}))
    words = "one too many" if number < 3 else "missing"
    place = f"{path} {min(number, 3)}"
    refused(Imagenette, path, words, place, "record-counts.json")
    cache.unlink()
    Imagenette.read(path.parent)


@pytest.mark.parametrize("number", [-1, "x", True])
def test_bad_number_in_the_cache_is_ignored(number, files):
    path = files(Imagenette)
    imagenet.load("imagenette", path.parent, 16)
    cache = path.with_name("imagenette-train-record-counts.json")
    (state,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({state: number}))
    training, _ = imagenet.load("imagenette", path.parent, 16)
    assert len(training) == 3
    assert json.loads(cache.read_text()) == {state: 3}


def test_other_error_is_not_converted(folder, capsys):
    _, test = imagenet.load("imagenette", folder, 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Something else"):
        with corruption.reported():
            for _ in evaluation_batches(test, 2):
                tf.debugging.Assert(False, ["Something else"])
    assert "Looking for what is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_first_damaged_record_is_named(folder, write_records, encoded_image):
    """The files determine the order, not the shuffled stream."""
    good, bad = (encoded_image(20, 20, 0), 3), (encoded_image(20, 20, 0), 10)
    path = folder / "imagenette-train-00001.tfrecord.gz"
    write_records(path, [good, good, bad, bad])
    training, _ = imagenet.load("imagenette", folder, 16)
    for epoch in range(3):
        with pytest.raises(InputError, match=f"Received: 10. File.*{path} 2"):
            with corruption.reported():
                steps = range(5 * epoch, 5 * epoch + 5)  # A pass over 9 records.
                list(training_batches(training, 2, AugmentationConfig(), 0, steps))
